//! Running the built program on files of a folder of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use bilin::io::{load_one, save};
use bilin::prelude::*;

/// A folder that is removed at the end of the test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let path = std::env::temp_dir().join(format!("bilin-cli-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    pub fn path(&self) -> &Path {
        &self.0
    }
    /// Writes a tensor to a file of the folder.
    pub fn put<T: Element>(&self, name: &str, data: &[T], shape: &[usize]) {
        self.put_tensor(name, &Tensor::from_slice(data, shape, &Device::reference()).unwrap());
    }
    pub fn put_tensor(&self, name: &str, t: &Tensor) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        save(path, &[("w", t)]).unwrap();
    }
    pub fn get(&self, name: &str) -> Tensor {
        load_one(self.0.join(name), &Device::reference()).unwrap()
    }
    /// Shape and numbers of a file, with its dtype checked.
    pub fn numbers<T: Element>(&self, name: &str) -> (Vec<usize>, Vec<T>) {
        let t = self.get(name);
        (t.shape().to_vec(), t.to_vec().unwrap())
    }
    /// Names in the folder, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
    /// Runs the program in this folder.
    pub fn run(&self, arguments: &[&str]) -> Run {
        Run::of(self.command(arguments).output().unwrap())
    }
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bilin"));
        command.args(arguments).current_dir(&self.0).stdin(Stdio::null());
        command
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What a run left.
#[derive(Debug)]
pub struct Run {
    pub status: i32,
    pub out: String,
    pub err: String,
}

impl Run {
    fn of(output: Output) -> Run {
        Run {
            status: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
    /// Asserts success and gives the output.
    pub fn ok(self) -> String {
        assert_eq!(self.status, 0, "{self:?}");
        self.out
    }
    /// Asserts failure with one line, and gives it.
    pub fn fails(self, status: i32) -> String {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.out, "", "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "{self:?}");
        assert!(self.err.starts_with("bilin: "), "{self:?}");
        self.err.trim_end().to_owned()
    }
}
