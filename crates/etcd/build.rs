//! Generates the client from `proto/etcd.proto`. Protox reads it, so nobody has to install protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../../proto/etcd.proto");
    let files = protox::compile(["etcd.proto"], ["../../proto"])?;
    tonic_prost_build::configure().build_server(false).compile_fds(files)?;
    Ok(())
}
