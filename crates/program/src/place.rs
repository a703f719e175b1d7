//! The user's folders.

use std::path::PathBuf;

/// A folder below `refrain` in the user's data folder; `None` if the user has none.
pub fn data_folder(name: &str) -> Option<PathBuf> {
    let data = if cfg!(windows) {
        folder_of("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        home("Library/Application Support")
    } else {
        folder_of("XDG_DATA_HOME").or_else(|| home(".local/share"))
    };
    data.map(|data| data.join("refrain").join(name))
}

/// The folder `refrain` in the user's folder of caches, which anyone may empty; `None` if the user has none.
pub fn cache_folder() -> Option<PathBuf> {
    if cfg!(windows) {
        return folder_of("LOCALAPPDATA").map(|local| local.join("refrain").join("cache"));
    }
    let cache = match cfg!(target_os = "macos") {
        true => home("Library/Caches"),
        false => folder_of("XDG_CACHE_HOME").or_else(|| home(".cache")),
    };
    cache.map(|cache| cache.join("refrain"))
}

/// The folder that a variable names, if the name is absolute.
pub fn folder_of(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// A path in the user's home folder; `None` if the user has none.
pub fn home(below: &str) -> Option<PathBuf> {
    folder_of(if cfg!(windows) { "USERPROFILE" } else { "HOME" }).map(|home| home.join(below))
}
