//! The chart in deploy/helm: this program's command line must accept what its containers run, and a gateway must accept
//! the file of its key.

use super::*;
use std::path::Path;

/// A file of the tree's folder of deployments.
fn deployed(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path)).unwrap()
}

fn template(name: &str) -> String {
    deployed(&format!("helm/holdfast/templates/{name}"))
}

/// An argument of a container, with a value where the chart has an expression.
fn filled(argument: &str) -> String {
    let (name, value) = argument.split_once('=').unwrap_or((argument, ""));
    let given = match name {
        _ if !value.contains("{{") => return argument.replace("$(NODE_NAME)", "worker1"),
        "--api" => "g1:7400,g2:7400",
        "--set-prefix" => "csi-",
        "--store" => "s3://bucket/prefix",
        "--device" => "kernel",
        "--max-volumes" => "32",
        "--locality" => "region=eu,zone=a",
        _ => panic!("{name}: found {value}, which this test does not know"),
    };
    format!("{name}={given}")
}

#[test]
fn what_the_chart_runs_is_a_command_line_of_this_program() {
    let text = template("csi.yaml");
    let mut started = Vec::new();
    for list in text.split("            - csi\n").skip(1) {
        let (list, _) = list.split_once("            - --log-format=").expect("the last argument");
        let arguments = list.lines().filter_map(|line| line.strip_prefix("            - ")).map(filled);
        let words = ["holdfast", "csi"].map(String::from).into_iter().chain(arguments).collect::<Vec<_>>();
        let parsed = Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        let Command::Csi(args) = parsed.command else { panic!("another command: {words:?}") };
        started.push(args.serve);
    }
    assert_eq!(started, [CsiServices::Controller, CsiServices::Node]);
    let gateway = ["gateway", "run", "--config", "/etc/holdfast/settings/$(POD_NAME).toml", "--log-format", "json"];
    let listed = gateway.map(|word| format!("{word:?}")).join(", ");
    assert!(template("gateways.yaml").contains(&format!("args: [{listed}]")), "{listed}");
    Cli::try_parse_from(["holdfast"].into_iter().chain(gateway)).unwrap();
}

/// Whoever follows the page has the image under the name that the chart asks for.
#[test]
fn the_page_makes_the_image_that_the_chart_names() {
    let version = env!("CARGO_PKG_VERSION");
    let chart = deployed("helm/holdfast/Chart.yaml");
    for line in [format!("version: {version}"), format!("appVersion: \"{version}\"")] {
        assert!(chart.lines().any(|found| found == line), "Chart.yaml: expected {line}");
    }
    assert!(deployed("helm/holdfast/values.yaml").contains("\n  repository: holdfast\n  tag: \"\"\n"));
    let page = deployed("../docs/operating/kubernetes.md");
    let named = format!("holdfast:{version}");
    for command in ["docker build -f deploy/helm/Dockerfile -t ", "kind load docker-image ", "docker save "] {
        assert!(page.contains(&format!("{command}{named} ")), "kubernetes.md: expected {command}{named}");
    }
    // The context is the whole tree: without the list, gigabytes of builds go to the daemon.
    let file = deployed("helm/Dockerfile");
    let copied = file.lines().find_map(|line| line.strip_prefix("COPY ")?.split(' ').next()).unwrap();
    let ignored = deployed("helm/Dockerfile.dockerignore");
    assert!(ignored.contains(&format!("\n*\n!{copied}\n")), "{ignored}");
}

/// SECRET-F1: the file in the volume of a Secret is root's and for a group, and a gateway refuses it.
#[test]
fn a_gateway_of_the_chart_has_a_key_file_of_its_own() {
    let text = template("gateways.yaml");
    assert!(settings("off").contains("key.file = \"/etc/holdfast/key/key\""));
    let (before, gateway) = text.split_once("\n      containers:\n").unwrap();
    let (gateway, volumes) = gateway.split_once("\n      volumes:\n").unwrap();
    let mount = gateway.lines().find(|line| line.contains("mountPath: /etc/holdfast/key,")).unwrap();
    let name = mount.split_once("{name: ").unwrap().1.split(',').next().unwrap();
    let volume = volumes.split_once(&format!("- name: {name}\n")).unwrap().1.lines().next().unwrap();
    assert!(volume.contains("emptyDir:"), "found {volume}, expected no volume of a Secret");
    let copies = "command: [\"install\", \"-m\", \"0400\", \"/etc/holdfast/secret/key\", \"/etc/holdfast/key/key\"]";
    assert!(before.contains(copies), "nobody puts it there");
}

/// The settings of a gateway of the chart, with values where the chart has expressions. `http`: TLS of its HTTP port.
fn settings(http: &str) -> String {
    let helpers = template("_helpers.tpl");
    let (_, text) = helpers.split_once("define \"holdfast.settings\" -}}\n").unwrap();
    let (text, _) = text.split_once("{{ .root.Values.gateways.settings }}").unwrap();
    let given = [
        ("{{ $name }}", "hf-holdfast-gateway-0"),
        ("{{ $domain }}", "hf-holdfast-gateway.holdfast.svc"),
        ("{{ index .root.Values.gateways.localities .index }}", "region=eu,zone=a"),
        ("{{ .root.Values.gateways.plaintextNetwork }}", "false"),
        ("{{ include \"holdfast.http\" .root }}", http),
    ];
    let lines = text.lines().filter(|line| !line.starts_with("{{"));
    let lines = lines.map(|line| given.iter().fold(line.to_string(), |line, (from, to)| line.replace(from, to)));
    let text = lines.collect::<Vec<_>>().join("\n");
    assert!(!text.contains("{{"), "an expression that this test does not know: {text}");
    text
}

/// ADR 0054: names of sets in /metrics are for certificates. The kubelet shows none, and asks without TLS unless
/// nothing is answered there.
#[test]
fn names_are_for_certificates_and_health_checks_for_the_kubelet() {
    for http in ["required", "checks", "off"] {
        let config = holdfast_gateway::config::GatewayConfig::parse(&settings(http)).unwrap();
        config.validate().unwrap();
        assert_eq!(config.tls.http_mode().as_str(), http);
        assert_eq!(config.names_in_plain().is_some(), http == "off", "{http}");
    }
    let helpers = template("_helpers.tpl");
    let unless_said = ".Values.tls.http | default (.Values.tls.gateways | empty | ternary \"off\" \"checks\")";
    assert!(helpers.contains(unless_said), "expected {unless_said}");
    let gateways = template("gateways.yaml");
    let probes: Vec<&str> = gateways.lines().filter(|line| line.contains("httpGet:")).collect();
    let scheme = "port: http, scheme: {{ include \"holdfast.scheme\" . }}}";
    assert!(probes.len() == 3 && probes.iter().all(|probe| probe.ends_with(scheme)), "{probes:?}");
    assert!(helpers.contains("include \"holdfast.http\" . | eq \"required\" | ternary \"HTTPS\" \"HTTP\""));
}

/// All gateways have one template of pods: whatever is in the sum of their settings restarts all of them.
#[test]
fn a_changed_number_of_gateways_restarts_none() {
    assert!(template("gateways.yaml").contains("\n        checksum/settings: {{ include \"holdfast.checksum\" . }}\n"));
    let helpers = template("_helpers.tpl");
    let (_, sum) = helpers.split_once("define \"holdfast.checksum\" -}}\n").unwrap();
    let (sum, _) = sum.split_once("\n{{- end }}\n").unwrap();
    assert!(sum.contains("include \"holdfast.settings\"") && !sum.contains("replicas"), "{sum}");
}

/// Nobody but its user may connect to the socket of the controller, or read the key of its certificate.
#[test]
fn the_controller_is_not_root_and_its_helpers_are_the_same_user() {
    let text = template("csi.yaml");
    let (_, controller) = text.split_once("\nkind: Deployment\n").unwrap();
    let (controller, nodes) = controller.split_once("\nkind: DaemonSet\n").unwrap();
    let (pod, containers) = controller.split_once("\n      containers:\n").unwrap();
    for line in ["runAsNonRoot: true", "runAsUser: 65532", "fsGroup: 65532"] {
        assert!(pod.contains(&format!("\n        {line}\n")), "expected {line}");
    }
    let (containers, volumes) = containers.split_once("\n      volumes:\n").unwrap();
    let each = containers.split("        - name: ").skip(1);
    for container in each.filter(|container| container.contains("          image: ")) {
        assert!(container.contains("\n          securityContext: {{- $closed | nindent 12 }}\n"), "{container}");
        assert!(!container.contains("runAsUser"), "{container}");
    }
    assert!(text.contains("readOnlyRootFilesystem: true"));
    assert!(volumes.contains("defaultMode: 0440"), "root alone could read its key");
    for (of, text) in [("controller", containers), ("node", nodes)] {
        assert!(text.contains("          livenessProbe: {{- include \"holdfast.alive\" "), "the {of} has no probe");
    }
    // The probe's interpreter is in each Debian, and in few others.
    assert!(deployed("helm/Dockerfile").contains("\nFROM debian:"));
}

/// If places count, the provisioner makes no volume for a pod on a node that tells none. By default nodes have none.
#[test]
fn places_count_only_where_each_node_has_one() {
    let text = template("csi.yaml");
    assert!(text.contains("\n            - --feature-gates=Topology={{ $places }}\n"));
    let each = "{{- range .Values.csi.nodeGroups }}{{- if not .locality }}{{- $places = false }}{{- end }}{{- end }}";
    assert!(text.contains(each), "expected {each}");
}

/// Otherwise no alert about gateways would ever fire: `up{job="holdfast"}` would find nothing.
#[test]
fn gateways_are_scraped_as_the_job_that_the_alert_rules_expect() {
    let text = template("gateways.yaml");
    let (_, monitor) = text.split_once("kind: ServiceMonitor\n").unwrap();
    assert!(monitor.contains("\n  jobLabel: app.kubernetes.io/name\n"), "the job would be the name of the Service");
    let helpers = template("_helpers.tpl");
    let (_, labels) = helpers.split_once("define \"holdfast.labels\"").unwrap();
    assert!(labels.contains("app.kubernetes.io/name: holdfast\n"));
    assert!(deployed("prometheus/holdfast.rules.yml").contains("up{job=\"holdfast\"} == 0"));
}

/// The schema of the chart's values.
fn schema() -> serde_json::Value {
    serde_json::from_str(&deployed("helm/holdfast/values.schema.json")).unwrap()
}

/// A value by its path, such as `csi.store`.
fn in_schema<'a>(schema: &'a serde_json::Value, path: &str) -> Option<&'a serde_json::Value> {
    path.split('.').try_fold(schema, |found, name| found["properties"].get(name))
}

/// The paths of all values, without what lies below a list or a definition.
fn described(found: &serde_json::Value, path: &str, all: &mut Vec<String>) {
    for (name, value) in found["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        assert!(value["description"].is_string(), "{path}: the schema does not say what it is");
        let typed = ["type", "enum", "allOf"].iter().any(|word| !value[*word].is_null());
        assert!(typed, "{path}: the schema takes anything");
        if value["type"] == "object" && value["properties"].is_object() {
            assert_eq!(value["additionalProperties"], false, "{path}: what is misspelt would be passed over");
        }
        described(value, &path, all);
        all.push(path);
    }
}

/// A value that the schema lacks cannot be set, and one that no template uses does nothing.
#[test]
fn the_schema_has_each_value_that_a_template_uses_and_no_other() {
    let (schema, values) = (schema(), deployed("helm/holdfast/values.yaml"));
    let texts = ["_helpers.tpl", "csi.yaml", "gateways.yaml"].map(template);
    let of_path = |c: char| c.is_ascii_alphanumeric() || c == '.';
    let used = texts.iter().flat_map(|text| text.split(".Values.").skip(1));
    let used: Vec<&str> = used.map(|rest| rest.split(|c: char| !of_path(c)).next().unwrap_or_default()).collect();
    assert!(used.len() > 40, "the templates were not read: {used:?}");
    for path in &used {
        assert!(in_schema(&schema, path).is_some(), "{path} is in a template, and not in the schema");
    }
    let mut all = Vec::new();
    described(&schema, "", &mut all);
    assert!(all.len() > 50, "the schema was not read: {all:?}");
    for path in all.iter().filter(|path| *path != "global") {
        let is_used = used
            .iter()
            .any(|used| used == path || path.starts_with(&format!("{used}.")) || used.starts_with(&format!("{path}.")));
        assert!(is_used, "{path} is in the schema, and no template uses it");
        let name = path.rsplit('.').next().unwrap_or_default();
        let given = values.lines().any(|line| line.trim_start().starts_with(&format!("{name}:")));
        // Parameters of the class have no defaults.
        assert!(given || path.starts_with("storageClass.parameters."), "{path} has no default in values.yaml");
    }
}
