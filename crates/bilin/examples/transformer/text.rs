//! A text as numbers: one for each of its distinct characters.

use std::fs;
use std::path::Path;

use bilin::prelude::*;

/// A text, the last tenth of which is held back.
#[derive(Debug)]
pub struct Text {
    /// The distinct characters, ascending; a character's number is its position.
    pub alphabet: Vec<char>,
    training: Vec<i64>,
    held_back: Vec<i64>,
}

/// Characters and the ones that follow them: two tensors (rows, columns) of i64.
pub type Pair = (Tensor, Tensor);

impl Text {
    /// The text of a file. Errors: one line that names the file, also where a part is shorter than a window of `context`
    /// characters and its successor.
    pub fn load(path: &Path, context: usize) -> std::result::Result<Text, String> {
        let bytes = fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let text = String::from_utf8(bytes).map_err(|e| format!("{}: {e}; want a text in UTF-8", path.display()))?;
        let mut alphabet: Vec<char> = text.chars().collect();
        alphabet.sort_unstable();
        alphabet.dedup();
        let mut training: Vec<i64> = text.chars().map(|c| alphabet.partition_point(|a| *a < c) as i64).collect();
        let held_back = training.split_off(training.len() - training.len() / 10);
        if held_back.len() <= context {
            let (got, want) = (training.len() + held_back.len(), 10 * (context + 1));
            return Err(format!("{}: {got} characters are too few; want at least {want}, or a shorter --context", path.display()));
        }
        Ok(Text { alphabet, training, held_back })
    }

    /// Windows of the training part from random places.
    pub fn batch(&self, rows: usize, columns: usize, rng: &mut Rng, device: &Device) -> Result<Pair> {
        let places = (self.training.len() - columns) as u64;
        let starts: Vec<usize> = (0..rows).map(|_| rng.below(places) as usize).collect();
        windows(&self.training, &starts, columns, device)
    }

    /// The part that is held back, cut into windows.
    pub fn held_back(&self, columns: usize, device: &Device) -> Result<Pair> {
        let starts: Vec<usize> = (0..(self.held_back.len() - 1) / columns).map(|i| i * columns).collect();
        windows(&self.held_back, &starts, columns, device)
    }

    /// The first characters of the part that is held back.
    pub fn prompt(&self, count: usize) -> Vec<i64> {
        self.held_back.iter().take(count).copied().collect()
    }

    /// The characters of numbers.
    pub fn read(&self, numbers: &[i64]) -> String {
        numbers.iter().filter_map(|&n| self.alphabet.get(n as usize)).collect()
    }
}

fn windows(numbers: &[i64], starts: &[usize], columns: usize, device: &Device) -> Result<Pair> {
    let of = |shift: usize| {
        let all: Vec<i64> = starts.iter().flat_map(|s| &numbers[s + shift..s + shift + columns]).copied().collect();
        Tensor::from_vec(all, [starts.len(), columns], device)
    };
    Ok((of(0)?, of(1)?))
}
