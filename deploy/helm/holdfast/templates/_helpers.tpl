{{- define "holdfast.name" -}}{{ printf "%s-holdfast" .Release.Name | trunc 40 | trimSuffix "-" }}{{- end }}
{{- define "holdfast.labels" -}}
app.kubernetes.io/name: holdfast
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "holdfast.selector" -}}
app.kubernetes.io/name: holdfast
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "holdfast.image" -}}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{- end }}
{{- define "holdfast.gateway" -}}{{ include "holdfast.name" . }}-gateway{{- end }}
{{- define "holdfast.domain" -}}{{ include "holdfast.gateway" . }}.{{ .Release.Namespace }}.svc{{- end }}
{{- /* Admin addresses of the gateways, with commas between them. */ -}}
{{- define "holdfast.api" -}}
{{- if .Values.csi.api -}}
{{- join "," .Values.csi.api -}}
{{- else -}}
{{- $all := list -}}
{{- range $i := until (int .Values.gateways.replicas) -}}
{{- $all = append $all (printf "%s-%d.%s:7400" (include "holdfast.gateway" $) $i (include "holdfast.domain" $)) -}}
{{- end -}}
{{- join "," $all -}}
{{- end -}}
{{- end }}
{{- /* TLS of the HTTP port of gateways. */ -}}
{{- define "holdfast.http" -}}{{ .Values.tls.http | default (.Values.tls.gateways | empty | ternary "off" "checks") }}{{- end }}
{{- /* How the kubelet asks there. It shows no certificate and checks none: the code of a health check is for everybody. */ -}}
{{- define "holdfast.scheme" -}}{{ include "holdfast.http" . | eq "required" | ternary "HTTPS" "HTTP" }}{{- end }}
{{- /* The settings of one gateway: `root` is the chart, `index` the number of the pod. */ -}}
{{- define "holdfast.settings" -}}
{{- $domain := include "holdfast.domain" .root -}}
{{- $name := printf "%s-%d" (include "holdfast.gateway" .root) .index -}}
name = "{{ $name }}"
{{- if lt .index (len .root.Values.gateways.localities) }}
locality = "{{ index .root.Values.gateways.localities .index }}"
{{- end }}
data_dir = "/var/lib/holdfast/gateway"
api_listen = "0.0.0.0:7400"
peer_listen = "0.0.0.0:7401"
nbd_listen = "0.0.0.0:10809"
http_listen = "0.0.0.0:7402"
plaintext_network = {{ .root.Values.gateways.plaintextNetwork }}
advertise.api = "{{ $name }}.{{ $domain }}:7400"
advertise.peer = "{{ $name }}.{{ $domain }}:7401"
advertise.nbd = "{{ $name }}.{{ $domain }}:10809"
advertise.http = "{{ $name }}.{{ $domain }}:7402"
key.file = "/etc/holdfast/key/key"
{{- if .root.Values.tls.gateways }}
tls.ca = "/etc/holdfast/tls/ca.pem"
tls.certificate = "/etc/holdfast/tls/{{ $name }}.pem"
tls.key = "/etc/holdfast/tls/{{ $name }}.key"
tls.http = "{{ include "holdfast.http" .root }}"
{{- end }}
{{ .root.Values.gateways.settings }}
{{- end }}
{{- /*
What restarts the gateways when it changes: their settings, and not their number. They have one template of pods, so a
gateway that comes (the fourth, the fifth) must change nothing in it.
*/ -}}
{{- define "holdfast.checksum" -}}
{{- $texts := list -}}
{{- range $i := until 3 -}}
{{- $texts = append $texts (include "holdfast.settings" (dict "root" $ "index" $i)) -}}
{{- end -}}
{{- join "\n" $texts | sha256sum -}}
{{- end }}
{{- /*
Whether the driver answers at its socket: a server of HTTP/2 begins with a frame, of at least 9 bytes. Nothing else is
asked. CSI's own Probe also fails on a node without nbd, where a restart repairs nothing. Perl is in the image, as in
each Debian (perl-base).
*/ -}}
{{- define "holdfast.alive" -}}
exec:
  command:
    - perl
    - -MIO::Socket::UNIX
    - -e
    - |-
      alarm 8;
      my $csi = IO::Socket::UNIX->new("/csi/csi.sock") or exit 1;
      syswrite $csi, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";
      exit(sysread($csi, my $frame, 9) == 9 ? 0 : 1);
initialDelaySeconds: 10
periodSeconds: 30
timeoutSeconds: 10
{{- end }}
