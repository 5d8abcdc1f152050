
// Only in the copy that `planted/run` builds. The alias lets every crate, this one too, write
// `windlass_core::planted("…")`.
extern crate self as windlass_core;
extern crate std as planted_std;

/// Is the bug of this name, the one in `PLANTED`, switched on?
pub fn planted(name: &str) -> bool {
    static ON: planted_std::sync::OnceLock<planted_std::string::String> =
        planted_std::sync::OnceLock::new();
    ON.get_or_init(|| planted_std::env::var("PLANTED").unwrap_or_default()) == name
}
