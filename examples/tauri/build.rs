//! Reads `tauri.conf.json`.

fn main() {
    #[cfg(feature = "window")]
    tauri_build::build();
}
