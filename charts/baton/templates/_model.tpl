{{/* Where the model's folder comes from. All take (dict "root" $ "source" {...}); exactly one key of a source is set. */}}

{{/* The keys of a source that are set, as a JSON list. */}}
{{- define "baton.model.kinds" -}}
{{- $kinds := list -}}
{{- range $kind, $value := . -}}
{{- if $value -}}{{- $kinds = append $kinds $kind -}}{{- end -}}
{{- end -}}
{{- $kinds | sortAlpha | toJson -}}
{{- end -}}

{{- define "baton.model.dir" -}}
{{- $path := "" -}}
{{- if .source.demo -}}
/models/baton-demo
{{- else -}}
{{- if .source.pvc -}}{{- $path = .source.pvc.path -}}{{- end -}}
{{- if .source.image -}}{{- $path = .source.image.path -}}{{- end -}}
/models/weights{{ with $path }}/{{ trimAll "/" . }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "baton.model.volumes" -}}
{{- if not .source.demo }}
- name: weights
  {{- with .source.pvc }}
  persistentVolumeClaim:
    claimName: {{ .claimName }}
    readOnly: true
  {{- end }}
  {{- with .source.hostPath }}
  hostPath:
    path: {{ .path }}
    type: Directory
  {{- end }}
  {{- with .source.image }}
  image:
    reference: {{ .reference }}
    pullPolicy: {{ .pullPolicy | default "IfNotPresent" }}
  {{- end }}
  {{- with .source.download }}
  emptyDir:
    sizeLimit: {{ .sizeLimit }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "baton.model.mounts" -}}
{{- if not .source.demo }}
- name: weights
  mountPath: {{ ternary "/models" "/models/weights" (not (empty .source.download)) }}
  readOnly: true
{{- end }}
{{- end -}}

{{/* The container that fetches an archive, checks its digest and unpacks it, before the service starts. */}}
{{- define "baton.model.initContainers" -}}
{{- with .source.download }}
- name: fetch-model
  image: {{ include "baton.image" $ }}
  imagePullPolicy: {{ $.root.Values.image.pullPolicy }}
  command: [python, -c]
  args:
    - |
      {{- $.root.Files.Get "files/fetch_model.py" | nindent 6 }}
    - {{ .url | quote }}
    - {{ .sha256 | quote }}
    - /models/weights
  env:
    - {name: HOME, value: /tmp}
  resources:
    requests: {cpu: 250m, memory: 128Mi}
    limits: {memory: 512Mi}
  securityContext:
    {{- include "baton.containerSecurity" $ | nindent 4 }}
  volumeMounts:
    - {name: weights, mountPath: /models}
    - {name: tmp, mountPath: /tmp}
{{- end }}
{{- end -}}
