{{- define "volley.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "volley.labels" -}}
app.kubernetes.io/name: volley
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "volley.selector" -}}
app.kubernetes.io/name: volley
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "volley.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* The internal address of a coordinator, by its ordinal: call with (list $ ordinal). */}}
{{- define "volley.internal" -}}
{{- $name := include "volley.name" (index . 0) -}}
{{ $name }}-coordinator-{{ index . 1 }}.{{ $name }}-coordinators.{{ (index . 0).Release.Namespace }}.svc:8421
{{- end -}}

{{/* The internal addresses of the first members, as a TOML list. */}}
{{- define "volley.seeds" -}}
{{- $root := . -}}
{{- $seeds := list -}}
{{- range $ordinal := until (int .Values.coordinators.bootstrap) -}}
{{- $seeds = append $seeds (include "volley.internal" (list $root $ordinal)) -}}
{{- end -}}
{{- $seeds | toJson -}}
{{- end -}}

{{- define "volley.security" -}}
[security]
{{- if .Values.security.nodesTls }}
nodes.certificate = "/etc/volley-tls/tls.crt"
nodes.key = "/etc/volley-tls/tls.key"
nodes.authority = "/etc/volley-tls/ca.crt"
{{- else }}
insecure = true
{{- end }}
{{- end -}}

{{- define "volley.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "volley.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}
