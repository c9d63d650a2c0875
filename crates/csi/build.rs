//! Generates the services of the Container Storage Interface from `proto/csi.proto`. Protox reads it, so nobody has to
//! install protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../../proto/csi.proto");
    let files = protox::compile(["csi.proto"], ["../../proto"])?;
    tonic_prost_build::configure().build_client(false).compile_fds(files)?;
    Ok(())
}
