//! Compiles the protocol between gateways with protox, so that nobody has to install protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=../../proto/peer.proto");
    let files = protox::compile(["peer.proto"], ["../../proto"])?;
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
