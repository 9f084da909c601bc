{{- /* Adds the values that are absent. `helm upgrade --reuse-values` renders this chart with the values of the chart that
       was installed before, which lacks every value added since. Every template calls this first. Helm gives the
       templates of a chart the same map of values: the first one to be rendered adds them for all. */}}
{{- define "muster.defaults" -}}
{{- if hasKey .Values "filled" | not -}}
{{- include "muster.fill" (dict "values" .Values "defaults" (.Files.Get "files/defaults.yaml" | fromYaml)) -}}
{{- $_ := set .Values "filled" true -}}
{{- end -}}
{{- end }}
{{- /* Maps and lists of Kubernetes' own shape are passed on as they are: a user removes a default with KEY=null. The
       texts of ConfigMaps (config, policy) are not merged either: the programs know the defaults of their fields. */}}
{{- define "muster.fill" -}}
{{- $kubernetes := list "affinity" "annotations" "nodeSelector" "podSecurityContext" "resources" "tolerations" -}}
{{- $whole := list "config" "policy" -}}
{{- range $key, $default := .defaults -}}
{{- $value := get $.values $key -}}
{{- if has $key $kubernetes -}}
{{- else if kindIs "invalid" $value -}}
{{- $_ := set $.values $key $default -}}
{{- else if and (hasKey $.values $key | not) (kindIs "string" $value) -}}
{{- $_ := set $.values $key $default -}}
{{- else if and (kindIs "map" $default) (kindIs "map" $value) (has $key $whole | not) -}}
{{- include "muster.fill" (dict "values" $value "defaults" $default) -}}
{{- end -}}
{{- end -}}
{{- end }}
{{- define "muster.labels" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "muster.selector" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/component: controller
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- /* Whether the controller shares the uplink's budget. */}}
{{- define "muster.uplink" -}}
{{- $uplink := .Values.network.config.uplink | default dict }}
{{- and .Values.network.enabled (not .Values.shadow) $uplink.enabled | default false }}
{{- end }}
{{- define "muster.guardSelector" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/component: guard
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "muster.agentSelector" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/component: agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "muster.cacheSelector" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/component: cache
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "muster.networkSelector" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/component: network
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "muster.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- define "muster.url" -}}
{{ .Values.advertiseUrl | default (printf "https://muster-controller.%s.svc:%v" .Release.Namespace .Values.service.port) }}
{{- end }}
{{- define "muster.lastRequests" -}}
preStop: {sleep: {seconds: 5}} # until all nodes know that the pod ends, they send it requests
{{- end }}
