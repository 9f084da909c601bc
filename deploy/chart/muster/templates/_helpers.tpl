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
{{- define "muster.agentSelector" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/component: agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "muster.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- define "muster.url" -}}
{{ .Values.advertiseUrl | default (printf "https://muster-controller.%s.svc:%v" .Release.Namespace .Values.service.port) }}
{{- end }}
