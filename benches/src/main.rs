//! bench
fn main(){}
