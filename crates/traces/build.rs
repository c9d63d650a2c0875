//! Generates the client from `proto/trace.proto`, and the server for tests. Protox reads it, so nobody has to install
//! protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../../proto/trace.proto");
    let files = protox::compile(["trace.proto"], ["../../proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
