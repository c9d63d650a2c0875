//! The OCI image, made without a daemon: layers by tar, JSON beside them, each blob under its digest
//! (<https://github.com/opencontainers/image-spec/blob/main/image-layout.md>).
//!
//! Two layers: the C library and the certificates of authorities from Debian's packages, and the program. No shell, no
//! package manager, no program with the set-user-id bit, and a user that is not root.

mod base;

use crate::inputs::Inputs;
use crate::release::Release;
use crate::{stage, sums, tarball};
use anyhow::{Context, Result, ensure};
pub use base::lower_layer;
use holdfast_chore::binary::root;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The user and group of the program, as numbers: `runAsNonRoot` of Kubernetes cannot judge a name. The number is the
/// one that images without a distribution usually have.
const USER: u32 = 65532;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A folder of the image that is not root's alone: path, owner, mode.
type Owned<'a> = (&'a str, u32, &'a str);

/// State, and the folder that programs expect to exist.
const OWNED: [Owned<'static>; 2] = [("var/lib/holdfast", USER, "0700"), ("tmp", 0, "1777")];

/// Makes the image below `work`, and an archive of it in `out`. Returns the archive.
pub fn build(inputs: &Inputs, base: &Path, work: &Path, out: &Path) -> Result<PathBuf> {
    let release = &inputs.release;
    let (program, layout) = (work.join("image"), layout(work));
    let blobs = layout.join("blobs/sha256");
    std::fs::create_dir_all(&blobs)?;
    write_program(&inputs.program.stripped, &program)?;
    let layers = [
        layer(release, base, &[], &work.join("base.tar"), &blobs)?,
        layer(release, &program, &OWNED, &work.join("program.tar"), &blobs)?,
    ];
    let created = release.date_json()?;
    let config = config(release, &created, &layers.each_ref().map(|layer| layer.unpacked.clone()));
    let config = blob(&blobs, CONFIG, config.to_string().as_bytes())?;
    let layers = layers.map(|layer| layer.blob);
    let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers });
    let mut manifest = blob(&blobs, MANIFEST, manifest.to_string().as_bytes())?;
    manifest["platform"] = json!({ "architecture": release.arch.debian, "os": "linux" });
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": tag(&release.version) });
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest] });
    std::fs::write(layout.join("index.json"), index.to_string())?;
    std::fs::write(layout.join("oci-layout"), json!({ "imageLayoutVersion": "1.0.0" }).to_string())?;
    stage::settle(&layout, release.epoch)?;
    let archive = out.join(release.file(".oci.tar"));
    let names = ["oci-layout", "index.json", "blobs"];
    let tar = tarball::tar(release).args(["--owner=0", "--group=0", "-C"]).arg(&layout).arg("-cf").arg(&archive);
    tar.args(names).run()?;
    Ok(archive)
}

/// The folder of the image below `work`.
pub fn layout(work: &Path) -> PathBuf {
    work.join("oci")
}

/// A version as a tag: `~` and `+` may not stand in one.
pub fn tag(version: &str) -> String {
    version.replace(['~', '+'], "-")
}

/// The files of the upper layer.
fn write_program(stripped: &Path, to: &Path) -> Result<()> {
    let files = [
        ("etc/passwd", format!("holdfast:x:{USER}:{USER}:Holdfast:/var/lib/holdfast:/usr/sbin/nologin\n")),
        ("etc/group", format!("holdfast:x:{USER}:\n")),
        // Without it the C library asks DNS before /etc/hosts.
        ("etc/nsswitch.conf", "hosts: files dns\n".to_owned()),
        ("usr/share/doc/holdfast/LICENSE", std::fs::read_to_string(root().join("LICENSE"))?),
    ];
    for (path, text) in files {
        let path = to.join(path);
        std::fs::create_dir_all(path.parent().unwrap_or(to))?;
        std::fs::write(&path, text)?;
    }
    std::fs::create_dir_all(to.join("usr/bin"))?;
    let program = to.join("usr/bin/holdfast");
    std::fs::copy(stripped, &program).with_context(|| stripped.display().to_string())?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// A layer among the blobs.
struct Layer {
    /// What the manifest says of it.
    blob: Value,
    /// The digest of the archive before it was compressed, with its algorithm.
    unpacked: String,
}

/// Packs a folder into a layer. The owned folders come last, with owners and modes of their own.
fn layer(release: &Release, folder: &Path, owned: &[Owned<'_>], archive: &Path, blobs: &Path) -> Result<Layer> {
    stage::settle(folder, release.epoch)?;
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        names.push(entry?.file_name());
    }
    names.sort();
    let tar = || tarball::tar(release).arg("-C").arg(folder);
    tar().args(["--owner=0", "--group=0", "-cf"]).arg(archive).args(&names).run()?;
    for (path, owner, mode) in owned {
        std::fs::create_dir_all(folder.join(path))?;
        let of = [format!("--owner={owner}"), format!("--group={owner}"), format!("--mode={mode}")];
        tar().args(of).args(["--no-recursion", "-rf"]).arg(archive).arg(path).run()?;
    }
    let unpacked = format!("sha256:{}", sums::of_file(archive)?);
    let packed = tarball::gzip(release, archive)?;
    let (digest, size) = (sums::of_file(&packed)?, std::fs::metadata(&packed)?.len());
    std::fs::rename(&packed, blobs.join(&digest))?;
    Ok(Layer { blob: json!({ "mediaType": LAYER, "digest": format!("sha256:{digest}"), "size": size }), unpacked })
}

/// Writes a blob under its digest. Returns what refers to it.
fn blob(blobs: &Path, kind: &str, content: &[u8]) -> Result<Value> {
    let digest = sums::of_bytes(content);
    std::fs::write(blobs.join(&digest), content)?;
    Ok(json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": content.len() }))
}

fn config(release: &Release, created: &str, unpacked: &[String]) -> Value {
    json!({
        "architecture": release.arch.debian,
        "os": "linux",
        "created": created,
        "config": {
            "User": format!("{USER}:{USER}"),
            "Entrypoint": ["/usr/bin/holdfast"],
            "Cmd": ["--help"],
            "Env": ["PATH=/usr/bin"],
            "WorkingDir": "/var/lib/holdfast",
            "Volumes": { "/var/lib/holdfast": {} },
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "holdfast",
                "org.opencontainers.image.version": release.version,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": unpacked },
        "history": vec![json!({ "created": created, "created_by": "cargo xtask dist" }); unpacked.len()],
    })
}

/// Follows an image from its index to the layers, compares every digest and size, and looks at the user. Fails when one
/// differs, is missing, or the user is root or none.
pub fn check(layout: &Path) -> Result<()> {
    let read = |path: &Path| -> Result<Value> {
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        serde_json::from_slice(&bytes).with_context(|| path.display().to_string())
    };
    let found = |of: &Value| -> Result<PathBuf> {
        let digest = of["digest"].as_str().and_then(|text| text.strip_prefix("sha256:"));
        let digest = digest.with_context(|| format!("found {of}, expected a SHA-256 digest"))?;
        let path = layout.join("blobs/sha256").join(digest);
        let (sum, size) = (sums::of_file(&path)?, std::fs::metadata(&path)?.len());
        ensure!(sum == digest, "{}: its digest is {sum}", path.display());
        ensure!(of["size"] == size, "{}: found {size} bytes, expected {}", path.display(), of["size"]);
        Ok(path)
    };
    let index = read(&layout.join("index.json"))?;
    let manifest = read(&found(&index["manifests"][0])?)?;
    let config = read(&found(&manifest["config"])?)?;
    let layers = manifest["layers"].as_array().context("the manifest names no layers")?;
    for layer in layers {
        found(layer)?;
    }
    let unpacked = config["rootfs"]["diff_ids"].as_array().map_or(0, Vec::len);
    ensure!(unpacked == layers.len(), "found {unpacked} diff_ids for {} layers", layers.len());
    let user = config["config"]["User"].as_str().unwrap_or_default();
    let number = user.split(':').next().and_then(|user| user.parse::<u32>().ok());
    ensure!(number.is_some_and(|number| number != 0), "found the user {user:?}, expected a number that is not root's");
    Ok(())
}
