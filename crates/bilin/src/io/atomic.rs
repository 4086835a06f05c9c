//! Files that appear whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bilin_core::{Error, Result};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Writes `bytes` to a temporary file next to `path`, syncs it and renames it onto `path`.
///
/// A reader of `path` sees the old file or the new one. A symbolic link is followed and stays a link.
///
/// # Errors
/// [`Error::Io`] with the system's message; the temporary file is removed then and `path` is as it was.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    replace(path, bytes).map_err(|e| Error::Io { op: "save".into(), path: path.display().to_string(), message: e.to_string() })
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    if target.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let (mut file, temporary) = create(&folder)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    drop(file);
    let renamed = written.and_then(|()| fs::rename(&temporary, &target));
    if renamed.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    renamed?;
    // The rename lasts over a power cut once the folder is synced; not every system can open folders.
    if let Ok(folder) = File::open(&folder) {
        let _ = folder.sync_all();
    }
    Ok(())
}

/// A new file in `folder` under a name that nothing else has.
fn create(folder: &Path) -> io::Result<(File, PathBuf)> {
    loop {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".bilin-{}-{count}.tmp", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other.map(|file| (file, path)),
        }
    }
}
