{{/* Names and labels. */}}

{{- define "baton.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Base of all names. Dots, which release names may have, are no part of Service names. */}}
{{- define "baton.fullname" -}}
{{- $name := include "baton.name" . -}}
{{- $full := .Release.Name -}}
{{- if .Values.fullnameOverride -}}
{{- $full = .Values.fullnameOverride -}}
{{- else if not (contains $name .Release.Name) -}}
{{- $full = printf "%s-%s" .Release.Name $name -}}
{{- end -}}
{{- $full | replace "." "-" | trimSuffix "-" -}}
{{- end -}}

{{/* Labels that select the pods of a component: (dict "root" $ "component" {...}). They never change over upgrades. */}}
{{- define "baton.selector" -}}
app.kubernetes.io/name: {{ include "baton.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component.role }}
{{- with .component.pool }}
baton/pool: {{ . }}
{{- end }}
{{- end -}}

{{/* Labels of every object of a component. */}}
{{- define "baton.labels" -}}
{{ include "baton.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Name, labels: the metadata of an object that bears its component's name. */}}
{{- define "baton.metadata" -}}
name: {{ .component.name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "baton.labels" . | nindent 2 }}
{{- end -}}

{{- define "baton.image" -}}
{{- $image := get .root.Values.image .component.image -}}
{{- with .root.Values.image.registry }}{{ . }}/{{ end -}}
{{ $image.repository }}{{ with $image.digest }}@{{ . }}{{ else }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end -}}
