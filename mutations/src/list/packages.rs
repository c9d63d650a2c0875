//! Packages: the same bytes each time, and nothing of an administrator's taken away.

use crate::bug::{Edit, Layer, Mutation, lib};

const STAGE: &str = "dist/src/stage.rs";

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "package-with-the-clock",
        bug: "files of a package have the time at which it was packed: two runs differ, and nobody can build it again",
        rule: "ADR 0060",
        edits: &[Edit {
            file: STAGE,
            old: "let time = UNIX_EPOCH + Duration::from_secs(epoch);",
            new: "let time = std::time::SystemTime::now().max(UNIX_EPOCH + Duration::from_secs(epoch));",
        }],
        tests: &[lib(Layer::Unit, "holdfast-dist", &["tests::every_file_has_the_time_of_the_commit"])],
        smoke: false,
    },
    Mutation {
        name: "package-with-the-umask",
        bug: "modes of packed files depend on the umask of whoever packs",
        rule: "ADR 0060",
        edits: &[Edit {
            file: STAGE,
            old: "let mode = if runs { 0o755 } else { 0o644 };",
            new: "let mode = if runs { 0o755 } else { meta.permissions().mode() & 0o777 };",
        }],
        tests: &[lib(Layer::Unit, "holdfast-dist", &["tests::packing_twice_gives_the_same_bytes"])],
        smoke: false,
    },
    Mutation {
        name: "purge-disables-units-of-others",
        bug: "a purge of the Debian package disables an administrator's own unit whose name begins as ours do",
        rule: "ADR 0060",
        edits: &[Edit { file: "deploy/package/deb/postrm", old: " -xtype l -delete", new: " -delete" }],
        tests: &[lib(Layer::Unit, "holdfast-dist", &["deb::tests::a_purge_takes_links_away_that_lead_nowhere"])],
        smoke: false,
    },
    Mutation {
        name: "purge-takes-the-data",
        bug: "a purge of the Debian package deletes the gateway's journal, which may have the only copy of writes",
        rule: "R1",
        edits: &[Edit {
            file: "deploy/package/deb/postrm",
            old: "  for left in /etc/holdfast",
            new: "  rm -rf /var/lib/holdfast\n  for left in /etc/holdfast",
        }],
        tests: &[lib(Layer::Unit, "holdfast-dist", &["deb::tests::no_script_removes_files"])],
        smoke: false,
    },
    Mutation {
        name: "removed-between-two-starts",
        bug: "the package is removed while a gateway waits for its next start, and nothing starts it any more",
        rule: "ADR 0060",
        edits: &[Edit { file: "deploy/package/deb/prerm", old: "=active,activating,", new: "=active," }],
        tests: &[lib(Layer::Unit, "holdfast-dist", &["deb::tests::a_removal_needs_to_know"])],
        smoke: false,
    },
    Mutation {
        name: "folder-of-keys-for-everybody",
        bug: "after a removal and a new installation the folder of settings and keys has the mode 0755",
        rule: "ADR 0060",
        edits: &[Edit { file: "deploy/package/deb/postinst", old: "= root:root:755 ]", new: "= new ]" }],
        tests: &[lib(Layer::Unit, "holdfast-dist", &["deb::tests::a_new_folder_of_keys_is_closed"])],
        smoke: false,
    },
    Mutation {
        name: "image-of-root",
        bug: "the image runs its program as root",
        rule: "ADR 0060",
        edits: &[Edit {
            file: "dist/src/image.rs",
            old: "\"User\": format!(\"{USER}:{USER}\"),",
            new: "\"User\": format!(\"0:{USER}\"),",
        }],
        tests: &[lib(Layer::Unit, "holdfast-dist", &["tests::an_image_of_root"])],
        smoke: false,
    },
    Mutation {
        name: "sbom-of-tests",
        bug: "the SBOM lists crates of tests, which are not in the program",
        rule: "ADR 0060",
        edits: &[Edit {
            file: "dist/src/sbom.rs",
            old: "any(|kind| kind[\"kind\"].is_null());",
            new: "any(|kind| kind[\"kind\"] != \"build\");",
        }],
        tests: &[lib(Layer::Unit, "holdfast-dist", &["sbom::tests::what_is_linked"])],
        smoke: false,
    },
    Mutation {
        name: "package-without-pages",
        bug: "a package lacks the pages that the doctor, refusals and units name",
        rule: "ADR 0060",
        edits: &[Edit {
            file: "dist/src/layout.rs",
            old: "filter(|path| path.ends_with(\".md\"))",
            new: "filter(|path| path.ends_with(\".html\"))",
        }],
        tests: &[lib(Layer::Unit, "holdfast-dist", &["tests::each_path_is_there_once_and_each_source_exists"])],
        smoke: false,
    },
];
