//! House rules, kept by a test and not by a meeting.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("it exists")
}

/// All files below `folder` with this ending, and what they say.
fn files(folder: &str, ending: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == ending) {
                let name = path.strip_prefix(root()).expect("below the root");
                let text = fs::read_to_string(&path).expect("text");
                found.push((name.to_string_lossy().into_owned(), text));
            }
        }
    }
    assert!(!found.is_empty(), "no .{ending} files in {folder}");
    found.sort();
    found
}

#[track_caller]
fn none(problems: Vec<String>) {
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_file_says_at_its_top_what_it_is() {
    let without = files("crates", "rs").into_iter().filter(|(_, text)| {
        !text.starts_with("//! ") && !text.starts_with("#![doc = include_str!")
    });
    none(without.map(|(name, _)| format!("{name} has no header")).collect());
}

#[test]
fn no_line_is_longer_than_a_hundred_columns() {
    let mut problems = Vec::new();
    for (name, text) in files("crates", "rs").into_iter().chain(files("crates", "sql")) {
        for (number, line) in text.lines().enumerate() {
            if line.chars().count() > 100 {
                problems.push(format!("{name}:{}", number + 1));
            }
        }
    }
    none(problems);
}

#[test]
fn the_core_is_pure_and_the_compiler_says_so() {
    let lib = fs::read_to_string(root().join("crates/windlass-core/src/lib.rs")).expect("text");
    assert!(lib.contains("#![no_std]"), "without it the core could ask for the time");
    let mut problems = Vec::new();
    for (name, text) in files("crates/windlass-core/src", "rs") {
        let product = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for (number, line) in product.lines().enumerate() {
            let uses_std = line.contains("std::") && !line.trim_start().starts_with("//");
            if uses_std || line.contains("HashMap") || line.contains("HashSet") {
                problems.push(format!("{name}:{} {line}", number + 1));
            }
        }
    }
    none(problems);
}

#[test]
fn only_the_clock_reads_the_time_and_waits() {
    let allowed = ["src/clock.rs", "src/testing.rs"];
    let banned = ["Instant::now", "SystemTime::now", "time::sleep", "thread::sleep", "now_v7"];
    let mut problems = Vec::new();
    for (name, text) in files("crates/windlass/src", "rs") {
        if allowed.iter().any(|file| name.ends_with(file)) {
            continue;
        }
        for word in banned {
            // An id's time only sorts it; no decision is made by it.
            if text.contains(word) && !(word == "now_v7" && name.ends_with("options.rs")) {
                problems.push(format!("{name} uses {word}"));
            }
        }
    }
    none(problems);
}

#[test]
fn our_own_enums_are_matched_by_name_in_the_state_machine() {
    let transition = root().join("crates/windlass-core/src/transition.rs");
    let text = fs::read_to_string(transition).expect("text");
    assert!(!text.contains("State::Running(_) => {}"), "a state must not be passed over");
    let wildcards = text.lines().filter(|line| line.trim_start().starts_with("_ =>"));
    // The one number that is matched there.
    assert_eq!(wildcards.count(), 1, "a wildcard would hide a new state");
}

#[test]
fn nothing_is_left_unfinished() {
    let marks = ["todo!", "unimplemented!", "dbg!(", "FIXME", "XXX", "#[ignore]"];
    let mut problems = Vec::new();
    for (name, text) in files("crates", "rs") {
        if name.ends_with("tidy.rs") {
            continue;
        }
        let found = marks.iter().filter(|mark| text.contains(**mark));
        problems.extend(found.map(|mark| format!("{name} has {mark}")));
    }
    none(problems);
}

#[test]
fn no_test_sleeps_on_a_real_clock() {
    let mut problems = Vec::new();
    for (name, text) in files("crates/windlass/tests", "rs") {
        let real = text.matches("#[tokio::test]").count();
        if real > 0 && !name.ends_with("tidy.rs") {
            problems.push(format!("{name} has {real} tests without `start_paused`"));
        }
        if text.contains("thread::sleep") && !name.ends_with("tidy.rs") {
            problems.push(format!("{name} sleeps"));
        }
    }
    none(problems);
}

#[test]
fn no_example_is_longer_than_a_screen_or_two() {
    let long = files("crates/windlass/examples", "rs").into_iter();
    let long = long.filter(|(_, text)| text.lines().count() >= 80);
    none(long.map(|(name, _)| format!("{name} is 80 lines or longer")).collect());
}

#[test]
fn every_promise_on_the_guarantees_page_names_a_test_that_exists() {
    let page = fs::read_to_string(root().join("docs/guarantees.md")).expect("the page exists");
    let sources = files("crates", "rs").into_iter().chain(files("tests", "rs"));
    let tests: String = sources.map(|(_, text)| text).collect();
    let mut problems = Vec::new();
    let mut named = 0;
    for word in page.split('`').skip(1).step_by(2) {
        let is_test = word.contains('_') && word.len() > 30 && !word.contains([' ', '/', '.', ':']);
        if is_test {
            named += 1;
            if !tests.contains(&format!("fn {word}(")) {
                problems
                    .push(format!("docs/guarantees.md names `{word}`, which no test is called"));
            }
        }
    }
    none(problems);
    assert!(named > 40, "only {named} promises name their test");
}

#[test]
fn every_document_that_must_be_there_is_there() {
    for name in [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "docs/guarantees.md",
    ] {
        assert!(root().join(name).exists(), "{name} is missing");
    }
}

/// Names of types, traits and aliases in a file, without those that belong to a trait or are made
/// for tests.
fn type_names(text: &str) -> impl Iterator<Item = &str> {
    let product = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    product.lines().filter_map(|line| {
        let mut words = line.split_whitespace().filter(|word| !word.starts_with("pub"));
        // `pub(in crate::store)` is two words.
        let keyword = words.find(|word| *word != "crate::store)")?;
        let indented = line.starts_with(' ');
        let declares =
            matches!(keyword, "struct" | "enum" | "trait") || keyword == "type" && !indented;
        let name = words.next().filter(|_| declares)?;
        Some(name.split(['<', '(', '{', ';', ':']).next().unwrap_or(name))
    })
}

#[test]
fn no_type_name_stands_twice_in_a_crate() {
    // One of the two is built: with TLS or without.
    let twins = ["Tls"];
    let mut problems = Vec::new();
    for krate in
        ["windlass-core", "windlass", "windlass-server", "windlass-sim", "windlass-torture"]
    {
        let mut seen: BTreeMap<String, String> = BTreeMap::new();
        for (file, text) in files(&format!("crates/{krate}/src"), "rs") {
            for name in type_names(&text).filter(|name| !twins.contains(name)) {
                if let Some(other) = seen.insert(name.to_string(), file.clone()) {
                    problems.push(format!("{name} stands in {other} and in {file}"));
                }
            }
        }
    }
    none(problems);
}

#[test]
fn every_table_and_function_of_the_sql_is_in_the_glossary() {
    let glossary = fs::read_to_string(root().join("CONTRIBUTING.md")).expect("the page exists");
    let mut problems = Vec::new();
    let mut named = 0;
    for (file, text) in files("crates/windlass/src/store/postgres/sql", "sql") {
        for line in text.lines().filter(|line| line.starts_with("create ")) {
            let Some((_, name)) = line.split_once("windlass.") else { continue };
            let is_index = line.starts_with("create index") || line.starts_with("create unique");
            let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let name = &name[..end.unwrap_or(name.len())];
            named += 1;
            // A partition is called after its table.
            let known = glossary.contains(&format!("`{name}`"));
            if !is_index && !known {
                problems.push(format!("{file}: `{name}` is not in CONTRIBUTING.md"));
            }
        }
    }
    none(problems);
    assert!(named > 100, "only {named} were found");
}
