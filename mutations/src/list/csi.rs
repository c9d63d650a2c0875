//! The CSI driver: one node at a time, nothing is deleted or formatted that somebody needs, a name is one volume.

use crate::bug::{Edit, Layer, Mutation, Test, lib};

const ATTACH: &str = "crates/csi/src/node/attach.rs";
const CONTROLLER: &str = "crates/csi/src/controller.rs";
const MOUNT: &str = "crates/csi/src/node/mount.rs";
const NAMES: &str = "crates/csi/src/names.rs";

const OWNERS: Test = lib(Layer::Unit, "holdfast-csi", &["each_node_is_an_owner_of_its_own_and_uses_no_force"]);
const DELETION: Test = lib(Layer::Unit, "holdfast-csi", &["what_is_used_is_not_deleted"]);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "csi-nodes-with-one-owner",
        bug: "all nodes hold a volume under one name: a lease of one node passes for that of another",
        rule: "STAGED-S1",
        edits: &[Edit {
            file: ATTACH,
            old: "\"--owner\", options.node.as_str(), \"--dir\", dir]",
            new: "\"--owner\", set.as_str(), \"--dir\", dir]",
        }],
        tests: &[OWNERS],
        smoke: false,
    },
    Mutation {
        name: "csi-stages-by-force",
        bug: "a volume that is staged on one node is taken from it when it is staged on another",
        rule: "STAGED-S1",
        edits: &[Edit {
            file: ATTACH,
            old: "    args.extend(options.connection.iter().cloned());\n",
            new: "    args.extend(options.connection.iter().cloned());\n    args.push(\"--force\".to_string());\n",
        }],
        tests: &[OWNERS],
        smoke: true,
    },
    Mutation {
        name: "csi-deletes-what-is-used",
        bug: "a volume is deleted while a node has it",
        rule: "CSI-N2",
        edits: &[Edit { file: CONTROLLER, old: "        force: false,\n", new: "        force: true,\n" }],
        tests: &[DELETION],
        smoke: true,
    },
    Mutation {
        name: "csi-deletes-snapshots-with-a-volume",
        bug: "a volume is deleted with the snapshots that were made of it",
        rule: "CSI-N2",
        edits: &[Edit {
            file: CONTROLLER,
            old: "        with_snapshots: false,\n",
            new: "        with_snapshots: true,\n",
        }],
        tests: &[DELETION],
        smoke: false,
    },
    Mutation {
        name: "csi-deletes-sets-of-people",
        bug: "the driver deletes a set that it has not made",
        rule: "CSI-N2",
        edits: &[Edit {
            file: CONTROLLER,
            old: "        if !self.prefix.is_ours(id.set.as_str()) {\n",
            new: "        if id.set.as_str().is_empty() {\n",
        }],
        tests: &[DELETION],
        smoke: false,
    },
    Mutation {
        name: "csi-two-names-one-set",
        bug: "a name that looks like a hashed one shares its set with the name that has this hash",
        rule: "CSI-N1",
        edits: &[Edit {
            file: NAMES,
            old: "        if !name.starts_with(HASHED)\n",
            new: "        if !name.is_empty()\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-csi", &["a_name_has_one_set_and_a_set_one_name"])],
        smoke: false,
    },
    Mutation {
        name: "csi-formats-data",
        bug: "a volume with data that blkid does not know gets a new file system",
        rule: "STAGED-S3",
        edits: &[Edit {
            file: MOUNT,
            old: "        None if head.iter().all(|byte| *byte == 0) => Ok(true),\n",
            new: "        None if head.len() < usize::MAX => Ok(true),\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-csi", &["only_an_empty_volume_is_formatted"])],
        smoke: true,
    },
];
