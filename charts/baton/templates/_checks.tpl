{{/* Every rule that joins several values, each with a sentence that says what to set. A rule about one value is part of the schema. */}}

{{- define "baton.checks" -}}
{{- include "baton.checks.model" . -}}
{{- include "baton.checks.release" . -}}
{{- include "baton.checks.gateway" . -}}
{{- include "baton.checks.bareMetal" . -}}
{{- include "baton.checks.telemetry" . -}}
{{- include "baton.checks.tls" . -}}
{{- range $role := list "prefill" "decode" "worker" -}}
{{- range $pool, $given := (get $.Values $role).pools -}}
{{- $values := include "baton.poolValues" (dict "root" $ "given" $given) | fromYaml -}}
{{- $where := printf "%s.pools.%s" $role $pool -}}
{{- include "baton.checks.pool" (dict "root" $ "where" $where "role" $role "pool" $pool "values" $values) -}}
{{- end -}}
{{- end -}}
{{- include "baton.checks.pools" . -}}
{{- if and .Values.models (not (and .Values.worker.agent .Values.worker.pools)) -}}
{{- fail "models need pods that load them: set worker.agent, and at least one of worker.pools" -}}
{{- end -}}
{{- if and .Values.bareMetal.enabled (not .Values.tls.enabled) (not .Values.bareMetal.insecure) -}}
{{- fail "bareMetal.enabled opens router and cache index to other networks, where whoever reaches them would be believed: set tls.enabled, or bareMetal.insecure if none but friends can" -}}
{{- end -}}
{{- end -}}

{{/* One source of the model: (dict "root" $ "where" "model.source" "source" {...}). */}}
{{- define "baton.checks.source" -}}
{{- $kinds := include "baton.model.kinds" .source | fromJsonArray -}}
{{- $all := "demo, pvc, hostPath, image, download" -}}
{{- if eq (len $kinds) 0 -}}
{{- fail (printf "%s names no weights: set exactly one of %s; the demo model is `demo: true`" .where $all) -}}
{{- end -}}
{{- if gt (len $kinds) 1 -}}
{{- fail (printf "%s names several sources (%s): set exactly one of %s" .where (join ", " $kinds) $all) -}}
{{- end -}}
{{- if and .source.hostPath (ne .root.Values.podSecurity "privileged") -}}
{{- fail (printf "%s.hostPath is forbidden at Pod Security level %s: set podSecurity: privileged and label the namespace so, or use a pvc" .where .root.Values.podSecurity) -}}
{{- end -}}
{{- if and .source.image (eq .root.Values.podSecurity "restricted") -}}
{{- fail (printf "%s.image is a volume that Pod Security level restricted does not list: set podSecurity: baseline and label the namespace so, or use a pvc" .where) -}}
{{- end -}}
{{- if and .source.image (semverCompare "<1.33.0-0" .root.Capabilities.KubeVersion.Version) -}}
{{- fail (printf "%s.image needs Kubernetes 1.33 for image volumes, this cluster has %s: use a pvc or download" .where .root.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- with .source.download -}}
{{- if not (hasPrefix "https://" .url) -}}
{{- fail (printf "%s.download.url must begin with https://, got %s" $.where .url) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "baton.checks.model" -}}
{{- include "baton.checks.source" (dict "root" . "where" "model.source" "source" .Values.model.source) -}}
{{- if not .Values.model.name -}}
{{- fail "model.name is empty: set the name under which clients ask for the model" -}}
{{- end -}}
{{- if .Values.gateway.modelSource -}}
{{- include "baton.checks.source" (dict "root" . "where" "gateway.modelSource" "source" .Values.gateway.modelSource) -}}
{{- end -}}
{{- end -}}

{{- define "baton.checks.release" -}}
{{- if gt (len (include "baton.fullname" .)) 40 -}}
{{- fail (printf "the name %s is longer than 40 characters: set fullnameOverride to a shorter one" (include "baton.fullname" .)) -}}
{{- end -}}
{{- if not (or .Values.decode.pools .Values.worker.pools .Values.bareMetal.enabled) -}}
{{- fail "nothing decodes: name a pool under worker.pools, e.g. `worker: {pools: {cpu: {}}}`, or under decode.pools, or set bareMetal.enabled; charts/baton/examples has whole files" -}}
{{- end -}}
{{- range $key := list "router" "cacheIndex" -}}
{{- $replicas := int (get $.Values $key).replicas -}}
{{- if and (gt $replicas 1) (not $.Values.discovery.enabled) -}}
{{- fail (printf "%s.replicas is %d, and nodes must report to each: set discovery.enabled, or %s.replicas: 1" $key $replicas $key) -}}
{{- end -}}
{{- if and (eq $key "cacheIndex") (gt $replicas 1) $.Values.bareMetal.enabled -}}
{{- fail (printf "%s.replicas is %d, and nodes outside the cluster reach one pod alone: set %s.replicas: 1" $key $replicas $key) -}}
{{- end -}}
{{- end -}}
{{- range $key := list "gateway" "router" "cacheIndex" -}}
{{- include "baton.checks.budget" (dict "where" $key "values" (get $.Values $key)) -}}
{{- end -}}
{{- if and (eq (dig "prefillPolicy" "" .Values.router.settings) "remote") (not (or .Values.prefill.pools .Values.worker.pools .Values.bareMetal.enabled)) -}}
{{- fail "router.settings.prefillPolicy is remote, but nothing prefills remotely: name a pool under prefill.pools or worker.pools, or take another policy" -}}
{{- end -}}
{{- end -}}

{{- define "baton.checks.budget" -}}
{{- $least := .values.podDisruptionBudget.minAvailable -}}
{{- if and $least (not (kindIs "string" $least)) (not (dig "autoscaling" "enabled" false .values)) -}}
{{- if ge (int $least) (int .values.replicas) -}}
{{- fail (printf "%s.podDisruptionBudget.minAvailable is %d of %d replicas, so no Kubernetes node could be drained: set it below %s.replicas" .where (int $least) (int .values.replicas) .where) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "baton.checks.autoscaling" -}}
{{- $scaling := .scaling -}}
{{- if lt (int $scaling.maxReplicas) (int $scaling.minReplicas) -}}
{{- fail (printf "%s.autoscaling.maxReplicas (%d) is below minReplicas (%d): set it to that or more" .where (int $scaling.maxReplicas) (int $scaling.minReplicas)) -}}
{{- end -}}
{{- end -}}

{{- define "baton.checks.gateway" -}}
{{- $gateway := .Values.gateway -}}
{{- if and $gateway.ingress.enabled (not $gateway.ingress.hosts) -}}
{{- fail "gateway.ingress.enabled needs host names: set gateway.ingress.hosts" -}}
{{- end -}}
{{- if and $gateway.httpRoute.enabled (not $gateway.httpRoute.parentRefs) -}}
{{- fail "gateway.httpRoute.enabled needs a Gateway to attach to: set gateway.httpRoute.parentRefs" -}}
{{- end -}}
{{- if and $gateway.grpcRoute.enabled (not $gateway.grpcRoute.parentRefs) -}}
{{- fail "gateway.grpcRoute.enabled needs a Gateway to attach to: set gateway.grpcRoute.parentRefs" -}}
{{- end -}}
{{- if and $gateway.httpRoute.enabled $gateway.grpcRoute.enabled (eq (toJson $gateway.httpRoute.parentRefs) (toJson $gateway.grpcRoute.parentRefs)) -}}
{{- $distinct := concat $gateway.httpRoute.hostnames $gateway.grpcRoute.hostnames | uniq -}}
{{- if or (not $gateway.httpRoute.hostnames) (not $gateway.grpcRoute.hostnames) (lt (len $distinct) (add (len $gateway.httpRoute.hostnames) (len $gateway.grpcRoute.hostnames) | int)) -}}
{{- fail "gateway.httpRoute and gateway.grpcRoute share host names on one listener, which Gateways refuse: set different hostnames, or parentRefs with different sectionName" -}}
{{- end -}}
{{- end -}}
{{- if $gateway.tls.existingSecret -}}
{{- if and $gateway.ingress.enabled (not (regexMatch "backend-protocol\"?: *\"?(HTTPS|https)" (toJson $gateway.ingress.annotations))) -}}
{{- fail "gateway.ingress speaks plain to the gateway, and gateway.tls has it ask for TLS: leave one of them, or set the controller's annotation backend-protocol: HTTPS" -}}
{{- end -}}
{{- if or $gateway.httpRoute.enabled (and $gateway.grpcRoute.enabled (dig "grpcTls" true $gateway.settings)) -}}
{{- fail "gateway.httpRoute and grpcRoute have Gateways speak plain to the gateway, and gateway.tls has it ask for TLS: leave one of them" -}}
{{- end -}}
{{- end -}}
{{- if and $gateway.tls.clientCertificates (not $gateway.tls.existingSecret) -}}
{{- fail "gateway.tls.clientCertificates needs TLS on the gateway's ports: set gateway.tls.existingSecret" -}}
{{- end -}}
{{- if and $gateway.tls.clientCertificates .Values.telemetry.serviceMonitor.enabled -}}
{{- fail "telemetry.serviceMonitor scrapes without a certificate, and gateway.tls.clientCertificates asks for one: leave one of them" -}}
{{- end -}}
{{- if eq (int $gateway.service.httpPort) (int $gateway.service.grpcPort) -}}
{{- fail (printf "gateway.service.httpPort and grpcPort are both %d: set two different ports" (int $gateway.service.httpPort)) -}}
{{- end -}}
{{- if $gateway.autoscaling.enabled -}}
{{- include "baton.checks.autoscaling" (dict "where" "gateway" "scaling" $gateway.autoscaling) -}}
{{- if not (dig "requests" "cpu" "" $gateway.resources) -}}
{{- fail "gateway.autoscaling compares CPU use with the request: set gateway.resources.requests.cpu" -}}
{{- end -}}
{{- end -}}
{{- if and $gateway.apiKeys.existingSecret (not .Values.test.apiKeySecret) (not $gateway.tls.clientCertificates) -}}
{{- fail "gateway.apiKeys is set, so `helm test` needs a key too: set test.apiKeySecret to a Secret that holds one" -}}
{{- end -}}
{{- end -}}

{{- define "baton.checks.bareMetal" -}}
{{- $outside := .Values.bareMetal -}}
{{- if $outside.enabled -}}
{{- if not $outside.cidrs -}}
{{- fail "bareMetal.enabled opens router and cache index to other networks: set bareMetal.cidrs to those of the machines" -}}
{{- end -}}
{{- if and (eq $outside.service.type "ClusterIP") (not (or $outside.grpcRoute.enabled $outside.tlsRoute.enabled)) -}}
{{- fail "bareMetal.service.type ClusterIP is not reachable from outside: set LoadBalancer or NodePort, or bareMetal.grpcRoute.enabled or tlsRoute.enabled" -}}
{{- end -}}
{{- include "baton.checks.nodePorts" (dict "service" $outside.service "replicas" .Values.router.replicas) -}}
{{- end -}}
{{- range $route := list "grpcRoute" "tlsRoute" -}}
{{- $values := get $outside $route -}}
{{- if and $values.enabled (not $values.parentRefs) -}}
{{- fail (printf "bareMetal.%s.enabled needs a Gateway to attach to: set bareMetal.%s.parentRefs" $route $route) -}}
{{- end -}}
{{- if and $values.enabled (not $outside.enabled) -}}
{{- fail (printf "bareMetal.%s.enabled has no effect without bareMetal.enabled: set that too" $route) -}}
{{- end -}}
{{- end -}}
{{- if and $outside.grpcRoute.enabled (gt (int .Values.router.replicas) 1) -}}
{{- fail (printf "router.replicas is %d, and bareMetal.grpcRoute leads nodes outside to any one of them: set router.replicas: 1" (int .Values.router.replicas)) -}}
{{- end -}}
{{- if and $outside.grpcRoute.enabled .Values.tls.enabled -}}
{{- fail "bareMetal.grpcRoute ends TLS at the Gateway, but router and cache index ask machines for certificates: set bareMetal.tlsRoute instead" -}}
{{- end -}}
{{- if and $outside.tlsRoute.enabled (not .Values.tls.enabled) -}}
{{- fail "bareMetal.tlsRoute passes TLS through, but router and cache index have none: set tls.enabled, or bareMetal.grpcRoute instead" -}}
{{- end -}}
{{- include "baton.checks.join" . -}}
{{- end -}}

{{/* Each router has a number of its own: (dict "service" {...} "replicas" 2). */}}
{{- define "baton.checks.nodePorts" -}}
{{- $owners := dict -}}
{{- range $name := list "routerNodePort" "cacheIndexNodePort" "joinNodePort" -}}
{{- $first := int (get $.service $name) -}}
{{- range $number := until (ternary 1 (int $.replicas) (or (not $first) (eq $name "cacheIndexNodePort"))) -}}
{{- $port := add $first $number | toString -}}
{{- with get $owners $port -}}
{{- fail (printf "bareMetal.service.%s and %s are both %s: set two different ports%s" . $name $port (ternary ", as far apart as there are routers" "" (gt (int $.replicas) 1))) -}}
{{- end -}}
{{- if $first -}}{{- $_ := set $owners $port $name -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "baton.checks.join" -}}
{{- $join := .Values.bareMetal.join -}}
{{- $enrols := include "baton.tls.enrols" . -}}
{{- if and (or $join.existingSecret $join.assignments) (not .Values.bareMetal.enabled) -}}
{{- fail "bareMetal.join has no effect without bareMetal.enabled: set that too" -}}
{{- end -}}
{{- if and (or $join.existingSecret $join.assignments) (not .Values.tls.enabled) -}}
{{- fail "bareMetal.join gives machines certificates, so connections need TLS: set tls.enabled" -}}
{{- end -}}
{{- if and $join.assignments (not $join.existingSecret) (or (not $enrols) .Values.tls.certManager.enabled) -}}
{{- fail "bareMetal.join.assignments has no effect without a secret by which machines join: set bareMetal.join.existingSecret" -}}
{{- end -}}
{{- if and $join.authority.existingSecret $enrols -}}
{{- fail "bareMetal.join.authority names a key, but pods and machines get certificates of one authority: set tls.authoritySecret instead" -}}
{{- end -}}
{{- if include "baton.join.secret" . -}}
{{- if not $join.assignments -}}
{{- fail "bareMetal.join does not say what machines run: set bareMetal.join.assignments, e.g. [{role: decode, settings: {engine: mlx, modelDir: /models/llama}}]" -}}
{{- end -}}
{{- if not $join.cacheIndexAddress -}}
{{- fail (printf "bareMetal.join must tell machines where the cache index is: set bareMetal.join.cacheIndexAddress to host:port of Service %s-cache-index-outside" (include "baton.fullname" .)) -}}
{{- end -}}
{{- $service := .Values.bareMetal.service -}}
{{- $replicas := int .Values.router.replicas -}}
{{- if and (gt $replicas 1) (ne (len (splitList "," $join.routerAddress)) $replicas) -}}
{{- fail (printf "bareMetal.join must tell machines where each of %d routers is: set bareMetal.join.routerAddress to host:port of Services %s-router-0-outside and so on, with commas, or router.replicas: 1" $replicas (include "baton.fullname" .)) -}}
{{- end -}}
{{- if and (eq $service.type "NodePort") (not $service.routerNodePort) (not $join.routerAddress) -}}
{{- fail "bareMetal.join must tell machines where the router is, and its node port is any: set bareMetal.service.routerNodePort or bareMetal.join.routerAddress" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "baton.checks.telemetry" -}}
{{- $endpoint := .Values.telemetry.otlpEndpoint -}}
{{- if and $endpoint (not (regexMatch "^https?://[^/:]+(:[0-9]+)?/?$" $endpoint)) -}}
{{- fail (printf "telemetry.otlpEndpoint must be http://HOST:PORT or https://HOST:PORT of an OTLP receiver over gRPC, got %s" $endpoint) -}}
{{- end -}}
{{- if and .Values.telemetry.podMonitor.enabled .Values.networkPolicy.enabled (not .Values.networkPolicy.metrics) -}}
{{- fail "telemetry.podMonitor.enabled is true and no NetworkPolicy lets anyone scrape: set networkPolicy.metrics to the pods of Prometheus" -}}
{{- end -}}
{{- $monitor := .Values.telemetry.serviceMonitor -}}
{{- if and $monitor.enabled .Values.gateway.apiKeys.existingSecret (not $monitor.apiKeySecret) -}}
{{- fail "gateway.apiKeys guards /metrics too: set telemetry.serviceMonitor.apiKeySecret to a Secret that holds an administrator's" -}}
{{- end -}}
{{- end -}}

{{- define "baton.checks.tls" -}}
{{- $tls := .Values.tls -}}
{{- $issued := $tls.certManager.enabled -}}
{{- $given := list -}}
{{- if $tls.secretName -}}{{- $given = append $given "tls.secretName" -}}{{- end -}}
{{- if $tls.authoritySecret -}}{{- $given = append $given "tls.authoritySecret" -}}{{- end -}}
{{- if $issued -}}{{- $given = append $given "tls.certManager.enabled" -}}{{- end -}}
{{- if gt (len $given) 1 -}}
{{- fail (printf "%s are set: set one" (join " and " $given)) -}}
{{- end -}}
{{- if and (not $tls.enabled) $given -}}
{{- fail (printf "%s is set, but tls.enabled is false: set it to true" (first $given)) -}}
{{- end -}}
{{- if and $issued (not $tls.certManager.issuerRef.name) -}}
{{- fail "tls.certManager.enabled needs who signs the authority: set tls.certManager.issuerRef.name" -}}
{{- end -}}
{{- if and $tls.certManager.issuerRef.name (not $issued) -}}
{{- fail (printf "tls.certManager.issuerRef.name is set, which was a certificate for all pods: set tls.certManager.enabled if the issuer may sign an authority for certificates of their own, or have cert-manager keep that certificate and set tls.secretName: %s-tls" (include "baton.fullname" .)) -}}
{{- end -}}
{{- end -}}

{{- define "baton.checks.pool" -}}
{{- $values := .values -}}
{{- $device := dig "device" "cpu" $values.settings -}}
{{- $resource := $values.accelerator.resource -}}
{{- if gt (len (printf "%s-%s-%s" (include "baton.fullname" .root) .role .pool)) 46 -}}
{{- fail (printf "%s: its pods' names would be longer than the 63 characters of a node id: shorten the pool's name, or set fullnameOverride" .where) -}}
{{- end -}}
{{- if $values.modelSource -}}
{{- include "baton.checks.source" (dict "root" .root "where" (printf "%s.modelSource" .where) "source" $values.modelSource) -}}
{{- end -}}
{{- if eq $values.engine "mlx" -}}
{{- fail (printf "%s.engine is mlx, which runs on Apple machines: let them join by bareMetal, or set engine: torch" .where) -}}
{{- end -}}
{{- if and (eq $values.engine "mock") $resource -}}
{{- fail (printf "%s.accelerator.resource is %s, but engine mock computes nothing: remove it, or set engine: torch" .where $resource) -}}
{{- end -}}
{{- if and (eq $values.engine "torch") (eq $values.image "control") -}}
{{- fail (printf "%s.image is control, which holds no torch: set image: cpu or cuda, or engine: mock" .where) -}}
{{- end -}}
{{- if and $resource (eq $values.image "cpu") -}}
{{- fail (printf "%s.image is cpu, which cannot use %s: set image: cuda" .where $resource) -}}
{{- end -}}
{{- if and $resource (eq $values.engine "torch") (eq $device "cpu") -}}
{{- fail (printf "%s asks for %s, but computes on the CPU: set %s.settings.device: cuda" .where $resource .where) -}}
{{- end -}}
{{- if and (not $resource) (hasPrefix "cuda" $device) -}}
{{- fail (printf "%s.settings.device is %s, but the pods get no GPU: set %s.accelerator.resource: nvidia.com/gpu" .where $device .where) -}}
{{- end -}}
{{- $shards := int (dig "tensorParallel" 1 $values.settings) -}}
{{- if and $resource (gt $shards (int $values.accelerator.count)) -}}
{{- fail (printf "%s.settings.tensorParallel is %d, but each pod gets %d of %s: set %s.accelerator.count: %d" .where $shards (int $values.accelerator.count) $resource .where $shards) -}}
{{- end -}}
{{- if and $resource (hasKey (dig "limits" (dict) $values.resources) $resource) -}}
{{- fail (printf "%s.resources.limits names %s, which accelerator.count sets: remove it there" .where $resource) -}}
{{- end -}}
{{- if eq $values.advertise "hostPort" -}}
{{- if ne .root.Values.podSecurity "privileged" -}}
{{- fail (printf "%s.advertise hostPort is forbidden at Pod Security level %s: set podSecurity: privileged and label the namespace so" .where .root.Values.podSecurity) -}}
{{- end -}}
{{- if not .root.Values.bareMetal.enabled -}}
{{- fail (printf "%s.advertise hostPort serves nodes outside the cluster alone: set bareMetal.enabled, or advertise: podIP" .where) -}}
{{- end -}}
{{- end -}}
{{- include "baton.checks.budget" (dict "where" .where "values" $values) -}}
{{- if $values.autoscaling.enabled -}}
{{- include "baton.checks.poolAutoscaling" . -}}
{{- end -}}
{{- end -}}

{{- define "baton.checks.poolAutoscaling" -}}
{{- $scaling := .values.autoscaling -}}
{{- include "baton.checks.autoscaling" (dict "where" .where "scaling" $scaling) -}}
{{- if not (or $scaling.queueSeconds $scaling.kvUsedRatio) -}}
{{- fail (printf "%s.autoscaling looks at nothing: set queueSeconds or kvUsedRatio above 0" .where) -}}
{{- end -}}
{{- if not (or .root.Values.telemetry.otlpEndpoint .root.Values.telemetry.podMonitor.enabled) -}}
{{- fail (printf "%s.autoscaling follows metrics that nobody collects: set telemetry.otlpEndpoint or telemetry.podMonitor.enabled" .where) -}}
{{- end -}}
{{- if and (eq $scaling.kind "keda") (not $scaling.prometheusAddress) -}}
{{- fail (printf "%s.autoscaling.kind keda asks Prometheus: set %s.autoscaling.prometheusAddress" .where .where) -}}
{{- end -}}
{{- end -}}

{{/* Pools work together only where dtype and block size are equal. */}}
{{- define "baton.checks.pools" -}}
{{- $defaults := dict "dtype" "float32" "blockTokens" "16" -}}
{{- range $key, $default := $defaults -}}
{{- $owners := dict -}}
{{- range $role := list "prefill" "decode" "worker" -}}
{{- range $pool, $given := (get $.Values $role).pools -}}
{{- $values := include "baton.poolValues" (dict "root" $ "given" $given) | fromYaml -}}
{{- $_ := set $owners (toString (dig $key $default $values.settings)) (printf "%s.pools.%s" $role $pool) -}}
{{- end -}}
{{- end -}}
{{- range $index, $assignment := $.Values.bareMetal.join.assignments -}}
{{- $_ := set $owners (toString (dig $key $default $assignment.settings)) (printf "bareMetal.join.assignments[%d]" $index) -}}
{{- end -}}
{{- if gt (len $owners) 1 -}}
{{- $shown := list -}}
{{- range $value, $owner := $owners -}}{{- $shown = append $shown (printf "%s in %s" $value $owner) -}}{{- end -}}
{{- fail (printf "settings.%s differs (%s), and nodes exchange KV only where it is equal: set it under poolDefaults.settings, and for machines that join" $key (join ", " $shown)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
