//! What the README tells a newcomer to type is what this crate is made of, and it runs.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn text(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(root.join(path)).expect("a text of the repository")
}

/// The first block of this language in the README.
fn block(language: &str) -> String {
    let readme = text("../../README.md");
    let start = format!("```{language}\n");
    let (_, rest) = readme.split_once(&start).expect("the README has such a block");
    rest.split("```").next().expect("its end").to_string()
}

#[test]
fn the_dependencies_in_the_readme_are_those_of_this_crate() {
    let manifest = text("Cargo.toml");
    for line in block("toml").lines().filter(|line| line.contains(" = ")) {
        let (name, value) = line.split_once(" = ").expect("a dependency");
        // Where the clone stands is the reader's own affair.
        let value = if name == "windlass" { "{ path = \"../../crates/windlass\" }" } else { value };
        assert!(manifest.contains(&format!("{name} = {value}\n")), "{name} differs in Cargo.toml");
    }
    let ours = manifest.split("[dependencies]").nth(1).expect("dependencies");
    let count = |text: &str| text.lines().filter(|line| line.contains(" = ")).count();
    let of_crate = ours.split("\n[").next().expect("they end");
    assert_eq!(count(of_crate), count(&block("toml")), "as many as in the README");
}

#[test]
fn the_program_in_the_readme_is_this_one() {
    let program = text("src/main.rs");
    let (_, program) = program.split_once("\n\n").expect("a header");
    assert_eq!(program, block("rust,no_run"));
}

#[test]
fn the_program_sends_its_receipt() {
    let place = env::temp_dir().join(format!("windlass-first-program-{}", std::process::id()));
    fs::create_dir_all(&place).expect("a folder");
    let run = Command::new(env!("CARGO_BIN_EXE_first-program"))
        .current_dir(&place)
        .output()
        .expect("it starts");
    fs::remove_dir_all(&place).expect("it is ours");
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert!(said.starts_with("receipt 7 to ada@example.org, attempt 1\n"), "{said}");
}
