//! Generates the admin API from the files in `proto/`. Protox parses them, so protoc need not be installed.

use std::fmt::Write as _;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../../proto/admin.proto");
    println!("cargo::rerun-if-changed=../../proto/certificates.proto");
    println!("cargo::rerun-if-changed=../../proto/clones.proto");
    println!("cargo::rerun-if-changed=../../proto/snapshots.proto");
    println!("cargo::rerun-if-changed=../../proto/keys.proto");
    println!("cargo::rerun-if-changed=../../proto/leases.proto");
    println!("cargo::rerun-if-changed=../../proto/members.proto");
    println!("cargo::rerun-if-changed=../../proto/placing.proto");
    println!("cargo::rerun-if-changed=../../proto/reads.proto");
    println!("cargo::rerun-if-changed=../../proto/sets.proto");
    println!("cargo::rerun-if-changed=../../proto/stores.proto");
    println!("cargo::rerun-if-changed=../../proto/volumes.proto");
    let files = protox::compile(
        [
            "admin.proto",
            "certificates.proto",
            "clones.proto",
            "snapshots.proto",
            "keys.proto",
            "leases.proto",
            "members.proto",
            "placing.proto",
            "reads.proto",
            "sets.proto",
            "stores.proto",
            "volumes.proto",
        ],
        ["../../proto"],
    )?;
    // The calls and the fields of their requests, for who must have a line for each.
    let services = files.file.iter().flat_map(|file| &file.service);
    let mut methods = String::from("&[\n");
    for method in services.flat_map(|service| &service.method) {
        let request = method.input_type.as_deref().unwrap_or_default();
        let request = request.rsplit('.').next().unwrap_or_default();
        let mut messages = files.file.iter().flat_map(|file| &file.message_type);
        let message = messages.find(|message| message.name.as_deref() == Some(request));
        let message = message.ok_or_else(|| format!("no message {request}"))?;
        let fields: Vec<&str> = message.field.iter().filter_map(|field| field.name.as_deref()).collect();
        let name = method.name.as_deref().unwrap_or_default();
        writeln!(methods, "    Method {{ name: {name:?}, request: {request:?}, fields: &{fields:?} }},")?;
    }
    methods.push(']');
    std::fs::write(Path::new(&std::env::var("OUT_DIR")?).join("methods.rs"), methods)?;
    tonic_prost_build::configure()
        // `--output json` prints replies as they are.
        .message_attribute(".", "#[derive(serde::Serialize)]")
        .enum_attribute("holdfast.admin.v1.ChangeVolumeRequest.change", "#[derive(serde::Serialize)]")
        .field_attribute("holdfast.admin.v1.GroupStatus.role", "#[serde(serialize_with = \"crate::conv::role_text\")]")
        // These carry a token; src/secret.rs prints them without it.
        .skip_debug(
            ["GrantReply", "ContinueLeaseRequest", "RenewLeaseRequest", "ReleaseLeaseRequest"]
                .map(|name| format!("holdfast.admin.v1.{name}")),
        )
        .compile_fds(files)?;
    Ok(())
}
