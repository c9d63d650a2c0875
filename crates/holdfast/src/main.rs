//! holdfast
fn main() {}
