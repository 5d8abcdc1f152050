//! Measurements: each prints what was asked for, whatever the figures are.

use serde_json::Value;

use super::*;

#[test]
#[cfg(target_os = "linux")]
fn on_a_terminal_a_bench_cleans_up_its_progress() {
    let Some(shown) = on_a_terminal("bench --mode latency --jobs 100", "") else { return };
    assert!(shown.contains("latency: 100 samples"), "{shown:?}");
    assert!(shown.contains("jobs/s"), "{shown:?}");
}

/// Keys every measurement has, whatever it measures.
const KEYS: [&str; 16] = [
    "system",
    "store",
    "durability",
    "mode",
    "median",
    "n",
    "concurrency",
    "jobs_per_s",
    "p50_ms",
    "p99_ms",
    "max_ms",
    "rss_bytes",
    "bytes_written_per_job",
    "cpu_us_per_job",
    "ratio_to_limit",
    "limit_one_write_ratio",
];

/// Keys that only this mode has.
fn keys_of(mode: &str) -> &'static [&'static str] {
    match mode {
        "bulk" => &["batch", "bytes_per_s"],
        "backlog" => &["backlog", "ns_per_job", "ratio", "claim_ns_per_job", "claim_ratio"],
        "memory" => &["of", "state", "bytes_per_job"],
        "pool" => &["of", "lanes", "ratio_to_plain"],
        "debounce" => &["keys", "flushes", "bytes_per_object"],
        "continuous" => &["objects", "period_ms", "bytes_per_object"],
        "reopen" => &["open_ms", "disk_bytes", "live_bytes", "disk_ratio"],
        "idle" => &["seconds", "cpu_percent"],
        "doors" => &["of", "door", "ratio_to_own", "p50_more_ms"],
        "limit" => &["of", "writes_per_job", "bytes_per_write", "bytes_per_s"],
        _ => &[],
    }
}

/// Runs a bench on a store, with JSON, and checks that every line has all its keys.
#[track_caller]
fn check_bench(store: &str, arguments: &[&str]) -> Vec<Value> {
    let mut all = vec!["bench", "--store", store, "--json"];
    all.extend(arguments);
    let output = run(&all);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let lines = json_lines(&stdout(&output));
    for line in &lines {
        for key in KEYS.iter().chain(keys_of(line["mode"].as_str().expect("it has a mode"))) {
            assert!(line.get(key).is_some(), "no `{key}` in {line}");
        }
        assert_eq!(line["system"], "windlass");
        assert_eq!(line["store"], store);
    }
    lines
}

fn modes(lines: &[Value]) -> Vec<&str> {
    lines.iter().filter_map(|line| line["mode"].as_str()).collect()
}

#[test]
fn each_bench_prints_one_line_of_json_per_measurement() {
    let lines = check_bench("memory:", &["--mode", "lifecycle", "--jobs", "200"]);
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["mode"], "lifecycle");
    assert_eq!(lines[0]["n"], 200);
    assert!(lines[0]["jobs_per_s"].as_f64() > Some(0.0));
    assert!(lines[0]["p50_ms"].as_f64() <= lines[0]["max_ms"].as_f64());
    assert_eq!(lines[0]["durability"], "none");
    assert_eq!(lines[0]["bytes_written_per_job"], 0);

    let asked = "enqueue,bulk,drain,latency";
    let lines = check_bench("memory:", &["--mode", asked, "--jobs", "20"]);
    assert_eq!(modes(&lines).join(","), asked);
    let lines = check_bench("memory:", &["--mode", "backlog", "--jobs", "1k"]);
    assert_eq!(lines.len(), 1);
    assert_eq!((&lines[0]["backlog"], &lines[0]["ratio"]), (&1_000.into(), &1.0.into()));
    let lines =
        check_bench("memory:", &["--mode", "memory,idle", "--jobs", "2k", "--seconds", "1"]);
    let states: Vec<_> = lines.iter().map(|line| line["state"].as_str()).collect();
    assert_eq!(states, [Some("ready"), Some("scheduled"), None]);
    assert!(lines[2]["cpu_percent"].as_f64() < Some(50.0), "{}", lines[2]);
}

#[test]
fn on_a_disk_every_mode_has_its_figures_and_nothing_is_left_behind() {
    let scratch = Scratch::new();
    let store = scratch.path("bench");
    let lines = check_bench(&store, &["--jobs", "200", "--seconds", "1"]);
    let expected = [
        "memory",
        "memory",
        "memory",
        "enqueue",
        "limit",
        "bulk",
        "limit",
        "batch",
        "drain",
        "lifecycle",
        "limit",
        "limit",
        "pool",
        "pool",
        "debounce",
        "continuous",
        "latency",
        "backlog",
        "reopen",
        "idle",
    ];
    let mut told = modes(&lines);
    // One line for each sort of job and size of batch.
    told.dedup_by(|one, before| one == before && *one == "batch");
    assert_eq!(told, expected);
    for line in &lines {
        let compared = ["enqueue", "bulk", "lifecycle"].iter().any(|mode| line["mode"] == *mode);
        assert_eq!(line["ratio_to_limit"].as_f64() > Some(0.0), compared, "{line}");
        let of_ledger = line["of"] == "ledger";
        assert_eq!(line["durability"] == "sync", !of_ledger, "{line}");
        let writes = !of_ledger && line["mode"] != "reopen" && line["mode"] != "idle";
        // A payload is 200 bytes, and is written once; what only starts and ends jobs writes less.
        assert_eq!(line["bytes_written_per_job"].as_f64() > Some(100.0), writes, "{line}");
    }
    let lines: Vec<&Value> = lines.iter().filter(|line| line["mode"] != "batch").collect();
    let lifecycle = lines[8];
    assert!(lifecycle["limit_one_write_ratio"].as_f64() > Some(0.0), "{lifecycle}");
    assert_eq!(
        (&lines[9]["writes_per_job"], &lines[10]["writes_per_job"]),
        (&2.0.into(), &1.0.into())
    );
    let reopen = lines[17];
    assert!(reopen["disk_bytes"].as_u64() >= reopen["live_bytes"].as_u64(), "{reopen}");
    assert!(!std::path::Path::new(&store).exists());
}

#[test]
fn small_calls_are_measured_beside_each_large_work_and_alone() {
    let scratch = Scratch::new();
    let lines = check_bench(
        &scratch.path("bench"),
        &["--mode", "steady", "--jobs", "2k", "--seconds", "1"],
    );
    let beside: Vec<_> = lines.iter().filter_map(|line| line["beside"].as_str()).collect();
    assert_eq!(beside[..2], ["bare log", "nothing"]);
    assert_eq!(beside.len(), 9, "{beside:?}");
    for line in &lines {
        assert!(line["p99_ms"].as_f64() > Some(0.0) && line["stalls"].is_u64(), "{line}");
        let has_work = line["jobs"].as_u64() > Some(0);
        assert_eq!(line["large_ms"].as_f64() > Some(0.0), has_work, "{line}");
    }
}

#[test]
fn a_store_is_measured_by_each_of_its_doors_and_a_takeover_is_timed() {
    let scratch = Scratch::new();
    let lines = check_bench(&scratch.path("bench"), &["--mode", "doors", "--jobs", "200"]);
    let doors: Vec<_> = lines.iter().filter_map(|line| line["door"].as_str()).collect();
    let (each, takeover) = doors.split_at(12);
    assert!(each.chunks(3).all(|doors| doors == ["own", "joined", "http"]), "{doors:?}");
    assert_eq!((takeover, &lines[12]["of"]), (&["joined"][..], &"takeover".into()));
    for line in &lines[..9] {
        let own = (line["door"] == "own").then_some(1.0);
        let ratio = line["ratio_to_own"].as_f64();
        assert!(ratio > Some(0.0) && own.is_none_or(|own| ratio == Some(own)), "{line}");
    }
    assert!(lines[12]["p50_ms"].as_f64() > Some(0.0), "{}", lines[12]);
    check_refused(&["bench", "--mode", "doors"], 1, "`doors` measures a disk");
}

#[test]
fn pools_debounce_and_loops_are_measured_with_what_only_they_have() {
    let lines = check_bench("memory:", &["--mode", "pool", "--jobs", "200"]);
    let of: Vec<_> = lines.iter().map(|line| (&line["of"], &line["lanes"], &line["n"])).collect();
    assert_eq!(
        of,
        [(&"plain".into(), &0.into(), &200.into()), (&"lanes".into(), &16.into(), &200.into())]
    );
    assert_eq!(lines[0]["ratio_to_plain"], Value::Null);
    assert!(lines[1]["ratio_to_plain"].as_f64() > Some(0.0), "{}", lines[1]);

    let lines = check_bench("memory:", &["--mode", "debounce,continuous", "--jobs", "25"]);
    let [debounce, continuous] = &lines[..] else { panic!("not two lines: {lines:?}") };
    // Ten events per key; what is left over is not added.
    assert_eq!((&debounce["n"], &debounce["keys"]), (&20.into(), &2.into()));
    assert_eq!(debounce["flushes"], 2);
    assert_eq!(debounce["bytes_per_object"].is_null(), cfg!(not(target_os = "linux")));
    // Two runs of each object.
    assert_eq!((&continuous["n"], &continuous["objects"]), (&50.into(), &25.into()));
    assert_eq!(continuous["period_ms"], 1_000);
    assert!(continuous["p99_ms"].as_f64() > Some(0.0), "{continuous}");
    assert!(continuous["bytes_per_object"].is_null(), "it was not the first: {continuous}");
    let lines = check_bench("memory:", &["--mode", "debounce", "--jobs", "3"]);
    assert_eq!((&lines[0]["n"], &lines[0]["flushes"]), (&3.into(), &1.into()));
}

#[test]
fn several_runs_are_told_one_by_one_and_by_their_median() {
    let scratch = Scratch::new();
    let store = scratch.path("bench");
    let asked = ["--mode", "enqueue,limit", "--jobs", "100", "--runs", "3"];
    let relaxed = ["--durability", "relaxed:20", "--keep"];
    let lines = check_bench(&store, &[asked.as_slice(), relaxed.as_slice()].concat());
    assert_eq!(modes(&lines), ["enqueue", "limit"].repeat(4));
    let medians: Vec<_> = lines.iter().map(|line| line["median"] == true).collect();
    assert_eq!(medians, [[false; 6].as_slice(), &[true; 2]].concat());
    let mut rates: Vec<_> = [0, 2, 4].map(|run| lines[run]["jobs_per_s"].as_f64()).to_vec();
    rates.sort_by(|one, other| one.partial_cmp(other).expect("they are numbers"));
    assert_eq!(lines[6]["jobs_per_s"].as_f64(), rates[1]);
    assert_eq!(lines[6]["durability"], "relaxed(20ms)");
    // They were kept, and the next bench knows the directory for its own.
    for run in 1..=3 {
        assert!(std::path::Path::new(&store).join(format!("enqueue-{run}")).is_dir());
    }
    check_bench(&store, &["--mode", "latency", "--jobs", "1"]);
}

#[test]
fn a_bench_refuses_what_it_could_spoil_and_what_it_cannot_measure() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path("letter"), "dear Ada").expect("it can be written");
    let store = scratch.path("");
    check_refused(&["bench", "--store", &store], 1, "is not empty and not made by a bench");
    check_refused(&["bench", "--store", &scratch.path("letter")], 1, "cannot measure in");
    assert_eq!(std::fs::read(scratch.path("letter")).expect("it is still there"), b"dear Ada");
    check_refused(&["bench", "--mode", "limit"], 1, "`limit` measures a disk");
    check_refused(&["bench", "--durability", "sync"], 1, "no durability to choose");
    check_refused(&["bench", "--durability", "relaxed"], 2, "`relaxed:MS`");
    check_refused(&["bench", "--store", "nowhere:"], 1, "cannot open `nowhere:`");
}

#[test]
fn a_bench_without_json_prints_a_table() {
    let output = run(&["bench", "--mode", "enqueue", "--jobs", "20"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let text = stdout(&output);
    assert!(text.starts_with("store memory: (durability: none), 200 bytes of payload"), "{text}");
    assert!(text.contains("jobs/s"), "{text}");
    assert!(text.contains("\n enqueue "), "{text}");

    let scratch = Scratch::new();
    let asked = ["--mode", "lifecycle,limit", "--jobs", "20", "--runs", "2"];
    let output = run(&[&["bench", "--store", &scratch.path("bench")], &asked[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    for words in ["(durability: sync)", "medians of 2 runs", "of limit: the part", "2 writes"] {
        assert!(text.contains(words), "no `{words}` in\n{text}");
    }
}

#[test]
fn a_bench_says_what_bounds_it_and_what_changed_since_the_last_run_there() {
    let scratch = Scratch::new();
    let store = scratch.path("bench");
    let asked = ["bench", "--store", &store, "--mode", "enqueue", "--jobs", "200"];
    let first = stdout(&run(&asked));
    assert_eq!(first.contains("What bounds you:\n  enqueue  the "), cfg!(target_os = "linux"));
    assert!(!first.contains("Since the last run"), "{first}");
    let again = stdout(&run(&asked));
    assert!(again.contains("Since the last run here:\n  enqueue: "), "{again}");
    let other = stdout(&run(&[&asked[..], &["--concurrency", "2"]].concat()));
    assert!(!other.contains("Since the last run"), "measured in another way: {other}");

    std::fs::write(scratch.path("bench.last.json"), "not of a bench").expect("written");
    let after = run(&asked);
    assert_eq!(after.status.code(), Some(0), "{}", stderr(&after));
    assert!(!stdout(&after).contains("Since the last run"));
}

#[test]
fn a_profile_chooses_what_is_measured_as_far_as_the_store_has_it() {
    let lines = check_bench("memory:", &["--profile", "quick", "--jobs", "50"]);
    assert_eq!(modes(&lines), ["enqueue", "bulk", "drain", "lifecycle", "latency"]);
    let scratch = Scratch::new();
    let lines = check_bench(&scratch.path("bench"), &["--profile", "quick", "--jobs", "50"]);
    let limits = modes(&lines).into_iter().filter(|mode| *mode == "limit").count();
    assert_eq!((lines.len(), limits), (9, 4));
    check_refused(&["bench", "--profile", "full", "--mode", "drain"], 2, "cannot be used with");
}
