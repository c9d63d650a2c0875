//! The CSI driver: one node at a time, nothing is deleted or formatted that somebody needs, a name is one volume.

use crate::bug::{Edit, Layer, Mutation, Test, file, lib};

const ATTACH: &str = "crates/csi/src/node/attach.rs";
const CONTROLLER: &str = "crates/csi/src/controller.rs";
const MOUNT: &str = "crates/csi/src/node/mount.rs";
const NAMES: &str = "crates/csi/src/names.rs";
const NODE: &str = "crates/csi/src/node.rs";
const SERVICES: &str = "crates/csi/src/services.rs";

const OWNERS: Test = lib(Layer::Unit, "holdfast-csi", &["each_node_is_an_owner_of_its_own_and_uses_no_force"]);
const FORMATTED: Test = lib(Layer::Unit, "holdfast-csi", &["only_an_empty_volume_is_formatted"]);
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
        smoke: false,
    },
    Mutation {
        name: "csi-deletes-what-is-used",
        bug: "a volume is deleted while a node has it",
        rule: "CSI-N2",
        edits: &[Edit { file: CONTROLLER, old: "        force: false,\n", new: "        force: true,\n" }],
        tests: &[DELETION],
        smoke: false,
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
        tests: &[FORMATTED],
        smoke: false,
    },
    Mutation {
        name: "csi-formats-what-it-cannot-read",
        bug: "a device that is not connected has no byte that is not zero, and counts as empty",
        rule: "STAGED-S3",
        edits: &[Edit {
            file: MOUNT,
            old: "        None if head.len() < HEAD_BYTES => Err(",
            new: "        None if head.len() > HEAD_BYTES => Err(",
        }],
        tests: &[FORMATTED],
        smoke: false,
    },
    Mutation {
        name: "csi-attaches-what-was-unstaged",
        bug: "an attach process is started again after its volume was unstaged: no other node gets the lease",
        rule: "STAGED-S2",
        edits: &[Edit {
            file: ATTACH,
            old: "        if self.records.volumes(set)?.is_empty() {\n",
            new: "        if self.records.volumes(set)?.len() > usize::MAX / 2 {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-csi", &["a_set_that_was_unstaged_meanwhile_is_not_attached_again"])],
        smoke: false,
    },
    Mutation {
        name: "csi-forgets-before-it-detaches",
        bug: "a volume whose detaching failed is forgotten: nothing starts its process again, and its last writes fail",
        rule: "STAGED-S2",
        edits: &[Edit {
            file: NODE,
            old: "        mount::unmount(staging)?;\n        if self",
            new: "        mount::unmount(staging)?;\n        self.records.remove(id)?;\n        if self",
        }],
        tests: &[lib(Layer::Unit, "holdfast-csi", &["a_volume_is_forgotten_after_it_is_detached"])],
        smoke: false,
    },
    Mutation {
        name: "csi-final-error-with-a-lease",
        bug: "a stage fails with a final code and leaves the set attached: Kubernetes never unstages it",
        rule: "STAGED-S2",
        edits: &[Edit { file: NODE, old: "        refused.left_open()\n", new: "        refused\n" }],
        tests: &[lib(Layer::Unit, "holdfast-csi", &["a_failed_stage_leaves_nothing_and_a_node_has_a_limit"])],
        smoke: false,
    },
    Mutation {
        name: "csi-published-where-nothing-is",
        bug: "a publish that failed counts as one: the volume is never unstaged, and the node keeps its lease",
        rule: "STAGED-S2",
        edits: &[Edit {
            file: NODE,
            old: ".map_err(|refused| self.not_published(&id, record, target, refused))",
            new: "",
        }],
        tests: &[lib(Layer::Unit, "holdfast-csi", &["a_failed_publish_leaves_nothing"])],
        smoke: false,
    },
    Mutation {
        name: "chart-key-of-a-group",
        bug: "the gateways of the chart read their key from the volume of a Secret, refuse it, and never start",
        rule: "SECRET-F1",
        edits: &[Edit {
            file: "deploy/helm/holdfast/templates/gateways.yaml",
            old: "            - {name: key, mountPath: /etc/holdfast/key, readOnly: true}\n",
            new: "            - {name: secret, mountPath: /etc/holdfast/key, readOnly: true}\n",
        }],
        tests: &[file(Layer::Unit, "holdfast", &["--bin", "holdfast"], &["cli::chart::"])],
        smoke: false,
    },
    Mutation {
        name: "chart-places-that-nodes-lack",
        bug: "places count though no node of the chart has one: the provisioner of Kubernetes makes no volume",
        rule: "ADR 0063",
        edits: &[Edit {
            file: "deploy/helm/holdfast/templates/csi.yaml",
            old: "Topology={{ $places }}",
            new: "Topology=true",
        }],
        tests: &[file(Layer::Unit, "holdfast", &["--bin", "holdfast"], &["cli::chart::"])],
        smoke: false,
    },
    Mutation {
        name: "chart-scraped-as-another-job",
        bug: "Prometheus scrapes the chart's gateways under a job that no alert rule knows: none fires",
        rule: "ADR 0061",
        edits: &[Edit {
            file: "deploy/helm/holdfast/templates/gateways.yaml",
            old: "  jobLabel: app.kubernetes.io/name\n",
            new: "",
        }],
        tests: &[file(Layer::Unit, "holdfast", &["--bin", "holdfast"], &["cli::chart::"])],
        smoke: false,
    },
    Mutation {
        name: "csi-mount-behind-a-link",
        bug: "a volume below a folder that is a link counts as unmounted, and is unstaged while it is mounted",
        rule: "STAGED-S2",
        edits: &[Edit {
            file: MOUNT,
            old: "    mounts::mount_at(&above.join(name)).map_err(Refused::failed)\n",
            new: "    mounts::mount_at(if name.is_empty() { above.as_path() } else { path }).map_err(Refused::failed)\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-csi", &["a_mount_is_found_by_a_path_with_a_link_in_it"])],
        smoke: false,
    },
    Mutation {
        name: "csi-refuses-for-a-copy-that-goes",
        bug: "a volume whose copy was deleted right before is refused for good, where waiting a moment would do",
        rule: "CSI-N2",
        edits: &[Edit {
            file: CONTROLLER,
            old: "        if !is_soon {\n",
            new: "        if is_soon || !copies.is_empty() {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-csi", &["a_source_is_deleted_when_its_copies_have_gone"])],
        smoke: false,
    },
    Mutation {
        name: "csi-waits-with-a-thread",
        bug: "24 deletions of volumes whose copies go keep every other call of the controller waiting",
        rule: "ADR 0063",
        edits: &[Edit {
            file: SERVICES,
            old: "            match self.once(move || again()).await? {\n",
            new: "            let slow = move || again().inspect_err(|_| std::thread::sleep(ENDING_LIMIT));\n            match self.once(slow).await? {\n",
        }],
        tests: &[lib(Layer::Unit, "holdfast-csi", &["calls_that_wait_for_deletions_keep_no_other_call_waiting"])],
        smoke: false,
    },
    Mutation {
        name: "csi-deletes-other-volumes",
        bug: "a set is deleted with a volume that a person has added to it",
        rule: "CSI-N2",
        edits: &[Edit {
            file: CONTROLLER,
            old: "        if status.volumes.len() > 1 && ",
            new: "        if status.volumes.len() > 9 && ",
        }],
        tests: &[lib(Layer::Unit, "holdfast-csi", &["other_volumes_of_a_set_are_not_deleted"])],
        smoke: false,
    },
];
