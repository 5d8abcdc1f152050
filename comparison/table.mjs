// Reads measurements as lines of JSON, and prints one table: the median of all rounds, and from least to most.
//
// A row is a system, a column a figure; "better" of two figures is left to the reader.

import { readFileSync } from "node:fs";

const FIGURES = [
  ["enqueue", "jobs_per_s", "enqueue x64, jobs/s"],
  ["bulk", "jobs_per_s", "bulk, jobs/s"],
  ["drain", "jobs_per_s", "drain, jobs/s"],
  ["idle", "p50_ms", "idle p50, ms"],
  ["idle", "p99_ms", "idle p99, ms"],
  ["load", "p50_ms", "load p50, ms"],
  ["load", "p99_ms", "load p99, ms"],
  ["enqueue", "server_us", "enqueue x64, server µs/job"],
  ["bulk", "server_us", "bulk, server µs/job"],
  ["drain", "server_us", "drain, server µs/job"],
  ["load", "server_us", "load, server µs/job"],
  ["enqueue", "wal_bytes", "enqueue x64, WAL bytes/job"],
  ["bulk", "wal_bytes", "bulk, WAL bytes/job"],
  ["drain", "wal_bytes", "drain, WAL bytes/job"],
];

const lines = readFileSync(0, "utf8").split("\n").filter(Boolean).map((line) => JSON.parse(line));
const systems = ["windlass", "apalis", "graphile"].filter((name) => lines.some((line) => line.system === name));

const text = (figure) => figure.toLocaleString("en-US");

function cell(system, column, figure) {
  const all = lines.filter((line) => line.system === system && line.column === column);
  const sorted = all.map((line) => line[figure]).sort((a, b) => a - b);
  if (sorted.length === 0) return "";
  const middle = sorted.length >> 1;
  const median = sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  const spread = sorted.length > 1 ? ` (${text(sorted[0])}–${text(sorted.at(-1))})` : "";
  return text(median) + spread;
}

const rows = FIGURES.filter(([column]) => lines.some((line) => line.column === column)).map(
  ([column, figure, title]) => [title, ...systems.map((system) => cell(system, column, figure))],
);
const table = [["", ...systems], ...rows];
const widths = table[0].map((_, index) => Math.max(...table.map((row) => row[index].length)));
const line = (row) => `| ${row.map((entry, index) => entry.padEnd(widths[index])).join(" | ")} |`;
console.log(line(table[0]));
console.log(`|${widths.map((width) => "-".repeat(width + 2)).join("|")}|`);
for (const row of rows) console.log(line(row));
