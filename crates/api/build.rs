//! Generates the admin API from the files in `proto/`. Protox parses them, so protoc need not be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../../proto/admin.proto");
    println!("cargo::rerun-if-changed=../../proto/clones.proto");
    println!("cargo::rerun-if-changed=../../proto/snapshots.proto");
    println!("cargo::rerun-if-changed=../../proto/keys.proto");
    println!("cargo::rerun-if-changed=../../proto/leases.proto");
    println!("cargo::rerun-if-changed=../../proto/sets.proto");
    println!("cargo::rerun-if-changed=../../proto/stores.proto");
    println!("cargo::rerun-if-changed=../../proto/volumes.proto");
    let files = protox::compile(
        [
            "admin.proto",
            "clones.proto",
            "snapshots.proto",
            "keys.proto",
            "leases.proto",
            "sets.proto",
            "stores.proto",
            "volumes.proto",
        ],
        ["../../proto"],
    )?;
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
