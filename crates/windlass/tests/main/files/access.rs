//! Who may use a directory: one process at a time, and nobody but its owner.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_second_process_is_refused_with_the_name_of_the_first() {
    let bench = Bench::new();
    let store = bench.open();
    let refused = bench.try_open().expect_err("it is in use").to_string();
    assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
    drop(store);
    bench.open();
}

#[tokio::test(start_paused = true)]
async fn nobody_else_can_read_the_directory_or_its_files() {
    let bench = Bench::new();
    let store = bench.open();
    a_bit_of_everything(&store, &bench.clock).await;
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&bench.path()), 0o700);
    for entry in fs::read_dir(bench.path()).expect("a directory") {
        let path = entry.expect("an entry").path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_was_there_is_closed_to_others_unless_it_holds_something_else() {
    let bench = Bench::new();
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    let make = |path: &Path| {
        fs::create_dir_all(path).expect("made");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("opened to all");
    };
    make(&bench.path());
    bench.open().close().await;
    assert_eq!(mode(&bench.path()), 0o700);
    let (copy, shared) = (bench.directory.path().join("copy"), bench.directory.path().join("own"));
    back_up(&bench.path(), &copy).expect("copied");
    for entry in fs::read_dir(&copy).expect("a directory") {
        let path = entry.expect("an entry").path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    make(&shared);
    fs::write(shared.join("letters"), "not ours").expect("written");
    drop(RealDisk::open(&shared).expect("it is nobody's"));
    assert_eq!(mode(&shared), 0o755);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_no_directory_is_refused_in_words() {
    let directory = Directory::new();
    let file = directory.path().join("a-file");
    fs::write(&file, "text").expect("written");
    let refused = Engine::open(file.to_str().expect("a path")).await.expect_err("no directory");
    assert!(refused.to_string().contains("a-file"), "{refused}");
    let refused = Engine::open("mongodb://host").await.expect_err("no such store");
    assert!(refused.to_string().contains("./jobs"), "{refused}");
}
