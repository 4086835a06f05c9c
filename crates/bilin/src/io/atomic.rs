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
    write_all_whole(&[(path, bytes)])
}

/// The same for several files: none is put in place before all are written, so a folder that is missing or a full disk leaves
/// every path as it was.
///
/// # Errors
/// As of [`write_whole`]. A rename may still fail after another was done; that takes a folder that changes meanwhile.
pub fn write_all_whole(files: &[(impl AsRef<Path>, impl AsRef<[u8]>)]) -> Result<()> {
    let named = |path: &Path, e: io::Error| Error::Io { op: "save".into(), path: path.display().to_string(), message: e.to_string() };
    let stage = |(path, bytes): &(_, _)| {
        let path = AsRef::<Path>::as_ref(path);
        Staged::write(path, AsRef::<[u8]>::as_ref(bytes)).map_err(|e| named(path, e))
    };
    let staged = files.iter().map(stage).collect::<Result<Vec<_>>>()?;
    staged.into_iter().zip(files).try_for_each(|(file, (path, _))| file.put_in_place().map_err(|e| named(path.as_ref(), e)))
}

/// A file that is written and not in its place; dropped, it is removed.
struct Staged {
    target: PathBuf,
    folder: PathBuf,
    temporary: PathBuf,
}

impl Staged {
    fn write(path: &Path, bytes: &[u8]) -> io::Result<Staged> {
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        if target.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let folder = match target.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let (mut file, temporary) = create(&folder)?;
        let staged = Staged { target, folder, temporary };
        file.write_all(bytes).and_then(|()| file.sync_all())?;
        Ok(staged)
    }

    fn put_in_place(self) -> io::Result<()> {
        fs::rename(&self.temporary, &self.target)?;
        // The rename lasts over a power cut once the folder is synced; not every system can open folders.
        if let Ok(folder) = File::open(&self.folder) {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Nothing stands there once it is in place.
        let _ = fs::remove_file(&self.temporary);
    }
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
