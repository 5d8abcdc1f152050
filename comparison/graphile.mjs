// Graphile Worker's side of the comparison: the columns of `src/columns.rs`, with the same jobs, pauses, counts and checks.
//
// It is set up for speed by what its documentation offers: jobs are fetched 4,000 at a time into a local queue, run 200 at
// once, and completed in batches; no line of log is written per job.
//
// Usage: node graphile.mjs COLUMN --url … --postmaster … --jobs … [--warm-up …] [--seed …] [--slots …] [--pool …] [--queue …]

import { readFileSync, readdirSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { Worker as Thread, isMainThread, parentPort, workerData } from "node:worker_threads";
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";

const CALLERS = 64;
const CONNECTIONS = 20;
const BATCH = 1000;
const PAYLOAD_BYTES = 200;
const EVERY_MS = 1;
const PATIENCE_MS = 300_000;
const TICKS_A_SECOND = 100;
const TASK = "measured";
const OPEN_JOBS = "select count(*) from graphile_worker._private_jobs";
const settings = ({ slots, queue, pool }) =>
  `${slots} at once, local queue of ${queue}, pool of ${pool}, completions batched`;

const silent = new Logger(() => () => {});

// Milliseconds of a clock that all threads share.
const now = () => Number(process.hrtime.bigint()) / 1e6;

function payload(number) {
  const around = '{"number":,"padding":""}'.length + String(number).length;
  return { number, padding: "x".repeat(PAYLOAD_BYTES - around) };
}

// The same pauses as `job.rs` makes of the same seed: 5 to 25 ms.
function pausesFrom(seed) {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return (5000 + ((state >>> 8) % 20001)) / 1000;
  };
}

// Notes when each job's handler started, and that each started once.
class RunLog {
  constructor(jobs) {
    this.starts = new Float64Array(jobs);
    this.started = 0;
    this.waiting = null;
  }
  note(number) {
    this.starts[number] = now();
    this.started += 1;
    if (this.waiting && this.started >= this.waiting.jobs) {
      this.waiting.resolve();
      this.waiting = null;
    }
  }
  async reached(jobs) {
    if (this.started < jobs) await new Promise((resolve) => (this.waiting = { jobs, resolve }));
  }
  check() {
    const missing = this.starts.filter((at) => at === 0).length;
    must(missing === 0, `${missing} of ${this.starts.length} jobs did not run`);
    must(this.started === this.starts.length, `${this.starts.length} jobs ran ${this.started} times`);
  }
}

function must(holds, otherwise) {
  if (!holds) throw new Error(otherwise);
}

// What the server used: processor time from /proc, write-ahead log from its position.
class Server {
  constructor(client, postmaster) {
    this.client = client;
    this.postmaster = postmaster;
  }
  async number(query) {
    const { rows } = await this.client.query({ text: query, rowMode: "array" });
    return Number(rows[0][0]);
  }
  async used() {
    const wal = await this.number("select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint");
    return { processor: processorMicros(this.postmaster), wal };
  }
  async settle() {
    await this.client.query("vacuum analyze");
    await this.client.query("checkpoint");
  }
}

// Of the server's first process, of its children, and of those children that have ended.
function processorMicros(postmaster) {
  let ticks = 0;
  for (const entry of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    let text;
    try {
      text = readFileSync(`/proc/${entry}/stat`, "utf8");
    } catch {
      continue; // It has ended since.
    }
    const fields = text.slice(text.lastIndexOf(")") + 2).split(" ").map(Number);
    if (Number(entry) === postmaster) ticks += fields[11] + fields[12] + fields[13] + fields[14];
    else if (fields[1] === postmaster) ticks += fields[11] + fields[12];
  }
  return (ticks * 1e6) / TICKS_A_SECOND;
}

// Sends each number at the moment at which its call is due. A thread of its own, because the timers of Node.js round to
// whole milliseconds.
function pace({ calls, every }) {
  const nobody = new Int32Array(new SharedArrayBuffer(4));
  const began = now();
  for (let number = 0; number < calls; number += 1) {
    const due = began + number * every;
    const left = due - now();
    if (left > 0) Atomics.wait(nobody, 0, 0, left);
    parentPort.postMessage([number, due]);
  }
}

const enqueue = (system, number) => system.utils.addJob(TASK, payload(number));

async function byCallers(system, jobs) {
  const caller = async (first) => {
    for (let number = first; number < jobs; number += CALLERS) await enqueue(system, number);
  };
  await Promise.all(Array.from({ length: CALLERS }, (_, first) => caller(first)));
}

async function fill(system, jobs) {
  for (let first = 0; first < jobs; first += BATCH) {
    const size = Math.min(BATCH, jobs - first);
    const job = (_, index) => ({ identifier: TASK, payload: payload(first + index) });
    await system.utils.addJobs(Array.from({ length: size }, job));
  }
}

const startWorker = (system, log) =>
  run({
    preset: system.preset,
    taskList: { [TASK]: (job) => log.note(job.number) },
    noHandleSignals: true,
  });

async function stored({ server }, jobs) {
  const open = await server.number(OPEN_JOBS);
  must(open === jobs, `${jobs} jobs were enqueued, and ${open} are stored`);
}

// Waits for the last handler to start, and then for the last job to be settled: a finished job is deleted.
async function emptied({ server }, log, jobs) {
  await log.reached(jobs);
  while ((await server.number(OPEN_JOBS)) > 0) await sleep(1);
}

const difference = (after, before) => ({
  processor: after.processor - before.processor,
  wal: after.wal - before.wal,
});

// One of the two ways to enqueue, after a warm-up.
async function producing(system, plan, produce) {
  await produce(system, plan.warmUp);
  await system.server.settle();
  const before = await system.server.used();
  const began = now();
  await produce(system, plan.jobs);
  const took = now() - began;
  const used = difference(await system.server.used(), before);
  await stored(system, plan.warmUp + plan.jobs);
  return { ...each(plan.jobs, used), jobs_per_s: Math.round((plan.jobs / took) * 1000) };
}

// A worker empties a full queue. It ends when the server says that no job is open.
async function drain(system, plan) {
  await fill(system, plan.warmUp);
  const warm = new RunLog(plan.warmUp);
  const first = await startWorker(system, warm);
  await emptied(system, warm, plan.warmUp);
  await first.stop();

  await fill(system, plan.jobs);
  await stored(system, plan.jobs);
  await system.server.settle();
  const log = new RunLog(plan.jobs);
  const before = await system.server.used();
  const began = now();
  const worker = await startWorker(system, log);
  await emptied(system, log, plan.jobs);
  const took = now() - began;
  const used = difference(await system.server.used(), before);
  await worker.stop();
  log.check();
  return { ...each(plan.jobs, used), jobs_per_s: Math.round((plan.jobs / took) * 1000) };
}

// One job at a time with a pause before each: from the call until the handler starts.
async function idle(system, plan) {
  const all = plan.warmUp + plan.jobs;
  const [log, pause, latencies] = [new RunLog(all), pausesFrom(plan.seed), []];
  const worker = await startWorker(system, log);
  let before = await system.server.used();
  for (let number = 0; number < all; number += 1) {
    if (number === plan.warmUp) before = await system.server.used();
    await sleep(pause());
    const called = now();
    await enqueue(system, number);
    await log.reached(number + 1);
    latencies.push(log.starts[number] - called);
  }
  const used = difference(await system.server.used(), before);
  await endOfLatencies(system, worker, log, all);
  return { ...each(plan.jobs, used), ...percentiles(latencies.slice(plan.warmUp)) };
}

// A fixed rate: from the moment at which the call is due until the handler starts.
async function load(system, plan) {
  const all = plan.warmUp + plan.jobs;
  const log = new RunLog(all);
  const worker = await startWorker(system, log);
  const before = await system.server.used();
  const due = await atAFixedRate(system, all);
  await log.reached(all);
  const used = difference(await system.server.used(), before);
  await endOfLatencies(system, worker, log, all);
  const latencies = due.map((moment, number) => log.starts[number] - moment);
  return { ...each(all, used), ...percentiles(latencies.slice(plan.warmUp)) };
}

// Makes the calls, and answers with when each was due.
async function atAFixedRate(system, calls) {
  const [due, running] = [[], []];
  const thread = new Thread(new URL(import.meta.url), { workerData: { calls, every: EVERY_MS } });
  thread.on("message", ([number, moment]) => {
    due[number] = moment;
    running.push(enqueue(system, number));
  });
  await new Promise((resolve, reject) => thread.on("exit", resolve).on("error", reject));
  while (due.length < calls) await sleep(1);
  await Promise.all(running);
  return due;
}

async function endOfLatencies(system, worker, log, jobs) {
  await emptied(system, log, jobs);
  await worker.stop();
  log.check();
}

const rounded = (figure) => Math.round(figure * 100) / 100;

const each = (jobs, used) => ({
  jobs,
  server_us: rounded(used.processor / jobs),
  wal_bytes: Math.round(used.wal / jobs),
});

function percentiles(latencies) {
  const sorted = [...latencies].sort((a, b) => a - b);
  const at = (part) => rounded(sorted[Math.max(1, Math.ceil(sorted.length * part)) - 1]);
  return { p50_ms: at(0.5), p99_ms: at(0.99) };
}

async function open(plan) {
  const client = new pg.Client({ connectionString: plan.url });
  await client.connect();
  const preset = {
    worker: {
      connectionString: plan.url,
      maxPoolSize: plan.pool,
      concurrentJobs: plan.slots,
      localQueue: { size: plan.queue },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
      logger: silent,
    },
  };
  const utils = await makeWorkerUtils({ preset });
  await utils.migrate();
  return { server: new Server(client, plan.postmaster), preset, utils };
}

function planFromArguments() {
  const names = ["url", "postmaster", "jobs", "warm-up", "seed", "slots", "pool", "queue"];
  const options = Object.fromEntries(names.map((name) => [name, { type: "string" }]));
  const { values, positionals } = parseArgs({ options, allowPositionals: true });
  const number = (name, otherwise) => Number(values[name] ?? otherwise);
  return {
    column: positionals[0],
    url: values.url,
    postmaster: number("postmaster", 0),
    jobs: number("jobs", 1000),
    warmUp: number("warm-up", 0),
    seed: number("seed", 1),
    slots: number("slots", 200),
    pool: number("pool", CONNECTIONS),
    queue: number("queue", 4000),
  };
}

const COLUMNS = {
  enqueue: (system, plan) => producing(system, plan, byCallers),
  bulk: (system, plan) => producing(system, plan, fill),
  drain,
  idle,
  load,
};

async function main() {
  const plan = planFromArguments();
  const column = COLUMNS[plan.column];
  must(column, `there is no column ${plan.column}`);
  setTimeout(() => {
    console.error("it took too long: jobs are lost");
    process.exit(1);
  }, PATIENCE_MS);
  const figures = await column(await open(plan), plan);
  const about = { system: "graphile", column: plan.column, seed: plan.seed, settings: settings(plan) };
  console.log(JSON.stringify({ ...about, ...figures }));
  process.exit(0);
}

if (isMainThread) await main();
else pace(workerData);
