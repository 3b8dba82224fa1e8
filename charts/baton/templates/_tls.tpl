{{/* Mutual TLS between the release's pods: one certificate of its own authority, which all of them bear. */}}

{{- define "baton.tls.secretName" -}}
{{ .Values.tls.secretName | default (printf "%s-tls" (include "baton.fullname" .)) }}
{{- end -}}

{{/* Flags of a component: (dict "root" $ "isServer" true). A server's health is probed on a port without TLS. */}}
{{- define "baton.tls.flags" -}}
{{- if .root.Values.tls.enabled }}
- "--tls-cert-file=/etc/baton/tls/tls.crt"
- "--tls-key-file=/etc/baton/tls/tls.key"
- "--tls-ca-file=/etc/baton/tls/ca.crt"
- "--tls-server-name={{ .root.Values.tls.serverName }}"
{{- if .isServer }}
- "--tls-health-port={{ (include "baton.ports" .root | fromYaml).health }}"
{{- end }}
{{- else if .isServer }}
- "--insecure=true"
{{- end }}
{{- end -}}

{{/* Which of the gateway's public ports have no TLS: none of their own, and nothing before them that ends it. */}}
{{- define "baton.tls.plainPorts" -}}
{{- $gateway := .Values.gateway -}}
{{- $own := $gateway.tls.existingSecret -}}
{{- $plain := list -}}
{{- if not (or $own $gateway.httpRoute.enabled (and $gateway.ingress.enabled $gateway.ingress.tlsSecret)) -}}
{{- $plain = append $plain "REST" -}}
{{- end -}}
{{- if not (or (and $own (dig "grpcTls" true $gateway.settings)) $gateway.grpcRoute.enabled) -}}
{{- $plain = append $plain "gRPC" -}}
{{- end -}}
{{ join " and " $plain }}
{{- end -}}

{{/* Whether whoever reaches a public port may ask: it asks for no key, and for no certificate. */}}
{{- define "baton.tls.isOpen" -}}
{{- $gateway := .Values.gateway -}}
{{- if not (or $gateway.apiKeys.existingSecret (and $gateway.tls.clientCertificates (dig "grpcTls" true $gateway.settings))) -}}true{{- end -}}
{{- end -}}

{{/* What the gateway's public ports rely on: who ends TLS before them; else that none but friends reach them. */}}
{{- define "baton.tls.publicFlags" -}}
{{- $gateway := .Values.gateway -}}
{{- $own := $gateway.tls.existingSecret -}}
{{- $plain := include "baton.tls.plainPorts" . -}}
{{- if $own }}
- "--https-cert-file=/etc/baton/public-tls/tls.crt"
- "--https-key-file=/etc/baton/public-tls/tls.key"
- "--health-port={{ (include "baton.ports" . | fromYaml).health }}"
{{- if $gateway.tls.clientCertificates }}
- "--client-ca-file=/etc/baton/public-tls/ca.crt"
{{- end }}
{{- end }}
{{- if and (not $plain) (not (and $own (dig "grpcTls" true $gateway.settings))) }}
- "--tls-ends-upstream=true"
{{- end }}
{{- if or $plain (include "baton.tls.isOpen" .) }}
- "--insecure=true"
{{- end }}
{{- end -}}

{{/* What a port speaks, for whoever stands between: gRPC without TLS, or nothing that can be looked into. */}}
{{- define "baton.tls.appProtocol" -}}
{{ if not .root.Values.tls.enabled }}, appProtocol: kubernetes.io/h2c{{ end }}
{{- end -}}

{{/* Port on which a component's health is asked for: (dict "root" $ "port" 8010). */}}
{{- define "baton.tls.healthPort" -}}
{{ ternary (include "baton.ports" .root | fromYaml).health .port .root.Values.tls.enabled }}
{{- end -}}
