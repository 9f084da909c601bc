{{- /* Parts of expressions that several of the policies about teams share; every list in them comes from values. */}}
{{- define "muster.cel" -}}
{{ . | toJson | replace "\"" "'" }}
{{- end }}
{{- define "muster.teams.key" -}}
'{{ .Values.teams.key }}'
{{- end }}
{{- define "muster.teams.namespaceKey" -}}
'{{ .Values.teams.namespaceKey | default .Values.teams.key }}'
{{- end }}
{{- define "muster.teams.manager" -}}
system:serviceaccount:{{ .Release.Namespace }}:muster-controller
{{- end }}
{{- define "muster.teams.platform" -}}
request.userInfo.groups.exists(g, g in {{ include "muster.cel" .Values.teams.admission.platformGroups }})
{{- end }}
{{- /* In shadow mode the webhook does not fill pods in, so no pod may be denied for missing fields. */}}
{{- define "muster.teams.actions" -}}
{{ ternary (list "Deny") (list "Warn" "Audit") (and (eq .Values.teams.admission.policy "Deny") (not .Values.shadow)) | toJson }}
{{- end }}
{{- define "muster.teams.namespaceSelector" -}}
matchExpressions:
- key: kubernetes.io/metadata.name
  operator: NotIn
  values: {{ concat (list "kube-system" .Release.Namespace) .Values.teams.admission.exemptNamespaces | uniq | toJson }}
{{- end }}
{{- define "muster.teams.binding" -}}
{{- $ := index . 0 }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ index . 1 }}
  labels: {{- include "muster.labels" $ | nindent 4 }}
spec:
  policyName: {{ index . 1 }}
  validationActions: {{ include "muster.teams.actions" $ }}
{{- end }}
{{- /* Who makes what others own: user names by the owner's kind. One that makes pods or templates for an owner names no
       team of its own: the owner's template was checked when it was written. */}}
{{- define "muster.teams.controllers" -}}
{{- $all := "system:kube-controller-manager" }}
{{- $made := dict "v1/Node" (list) "muster.dev/v1alpha1/TrainingJob" (list (include "muster.teams.manager" .)) }}
{{- range $kind, $name := dict "apps/v1/Deployment" "deployment" "apps/v1/ReplicaSet" "replicaset" "apps/v1/StatefulSet" "statefulset" "apps/v1/DaemonSet" "daemon-set" "batch/v1/Job" "job" "batch/v1/CronJob" "cronjob" "v1/ReplicationController" "replication" }}
{{- $_ := set $made $kind (list (printf "system:serviceaccount:kube-system:%s-controller" $name) $all) }}
{{- end }}
{{- include "muster.cel" $made }}
{{- end }}
{{- define "muster.teams.vouched" -}}
object.metadata.?ownerReferences.orValue([]).exists(o, o.?controller.orValue(false) &&
request.userInfo.username in variables.controllers[?(o.apiVersion + '/' + o.kind)].orValue([]))
{{- end }}
{{- define "muster.teams.mayUse" -}}
variables.others.size() == 0 || variables.vouched || (variables.others.all(n, n == variables.others[0]) &&
authorizer.group('muster.dev').resource('teams').name(variables.others[0]).check('use').allowed())
{{- end }}
{{- define "muster.teams.mayUseMessage" -}}
messageExpression: >-
  'namespace ' + request.namespace + (variables.team == '' ? ' has no team' : ' is of team ' + variables.team) +
  '; team ' + variables.others[0] + ' needs the right to use teams/' + variables.others[0] +
  ' (API group muster.dev), and only one other team may be named'
{{- end }}
{{- define "muster.teams.selector" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/component: admission
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
