//! Generates the services of the Container Storage Interface from `proto/csi.proto`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/csi.proto");
    let mut files = protox::compile(["csi.proto"], ["proto"])?;
    // Without comments: they have indented text, which rustdoc would run as tests.
    for file in &mut files.file {
        file.source_code_info = None;
    }
    tonic_prost_build::configure()
        .build_client(false)
        // A call that is not written here is answered with UNIMPLEMENTED, as the specification wants it.
        .generate_default_stubs(true)
        .compile_fds(files)?;
    Ok(())
}
