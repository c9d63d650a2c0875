//! Generates the admin door from `proto/admin.proto`. Protox reads it, so nobody has to install protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../../proto/admin.proto");
    let files = protox::compile(["admin.proto"], ["../../proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
