//! Compiles the protocol between gateways with protox, so that nobody has to install protoc.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=../../proto/peer.proto");
    let files = protox::compile(["peer.proto"], ["../../proto"])?;
    // The calls, for who must have a line for each.
    let services = files.file.iter().flat_map(|file| &file.service);
    let methods = services.flat_map(|service| &service.method).filter_map(|method| method.name.as_deref());
    let methods = format!("&{:?}", methods.collect::<Vec<_>>());
    std::fs::write(Path::new(&std::env::var("OUT_DIR")?).join("methods.rs"), methods)?;
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
