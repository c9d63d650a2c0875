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
