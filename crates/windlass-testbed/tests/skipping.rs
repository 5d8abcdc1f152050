//! A test whose server is missing is skipped by name, and fails where nothing may be skipped.

use std::process::Command;

use windlass_testbed::{Missing, or_skip};

const NAME: &str = "a_test_without_its_server_is_named_and_fails_under_ci";

/// Starts this very test binary anew, as a test that lacks its server.
#[test]
fn a_test_without_its_server_is_named_and_fails_under_ci() {
    if std::env::var_os("WINDLASS_TESTBED_VICTIM").is_some() {
        let missing = Missing { what: "a server", how_to_install: "install it" };
        assert_eq!(or_skip::<()>(Err(missing)), None);
        return;
    }
    let list = std::env::temp_dir().join(format!("windlass-skipped-{}", std::process::id()));
    for (ci, passes) in [("", true), ("false", true), ("true", false)] {
        let mut victim = Command::new(std::env::current_exe().expect("it runs"));
        victim.args(["--exact", NAME]).env("WINDLASS_TESTBED_VICTIM", "1");
        victim.env("CI", ci).env("WINDLASS_SKIPPED", &list);
        let ended = victim.output().expect("it starts");
        assert_eq!(ended.status.success(), passes, "CI={ci}: {ended:?}");
    }
    let told = std::fs::read_to_string(&list).expect("it was written");
    std::fs::remove_file(&list).expect("it is ours");
    let line = format!("{NAME}: a server is missing (install it)\n");
    assert_eq!(told, line.repeat(2));
    assert_eq!(or_skip(Ok(7)), Some(7));
}
