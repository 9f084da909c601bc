{{- define "muster.readCache.selector" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/component: readcache
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "muster.readCache.nodeSelector" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/component: readcache-node
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- /* Rules for the cached kinds. muster/chart/rights.py writes the same ones for the default kinds. */}}
{{- define "muster.readCache.rules" -}}
{{- $custom := list -}}
{{- range .Values.readCache.kinds -}}
{{- $parts := regexSplit "[.]" . 2 -}}
{{- $group := "" -}}
{{- if gt (len $parts) 1 -}}
{{- $group = regexReplaceAll "^v[0-9]+((alpha|beta)[0-9]+)?([.]|$)" (index $parts 1) "" -}}
{{- end }}
- {apiGroups: [{{ $group | quote }}], resources: [{{ first $parts }}], verbs: [list, watch]}
{{- if and (contains "." $group) (not (hasSuffix ".k8s.io" $group)) -}}
{{- $custom = append $custom (printf "%s.%s" (first $parts) $group) -}}
{{- end -}}
{{- end }}
{{- with $custom }}
- {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], resourceNames: {{ . | toJson }}, verbs: [get]}
{{- end }}
{{- end }}
{{- /* A kubeconfig for pods. The certificates of the cache and the pod's token are files that change. */}}
{{- define "muster.readCache.kubeconfig" -}}
apiVersion: v1
kind: Config
clusters:
- name: muster-readcache
  cluster:
    server: {{ . }}
    certificate-authority: /etc/muster-readcache/ca.crt
users:
- name: pod
  user: {tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token}
contexts:
- name: muster-readcache
  context: {cluster: muster-readcache, user: pod}
current-context: muster-readcache
{{- end }}
{{- /* The pod's own token and the cluster's authority. */}}
{{- define "muster.readCache.token" -}}
- name: token
  projected:
    sources:
    - serviceAccountToken: {path: token, expirationSeconds: 3607}
    - configMap:
        name: kube-root-ca.crt
        items: [{key: ca.crt, path: ca.crt}]
    - downwardAPI:
        items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]
{{- end }}
{{- define "muster.readCache.common" -}}
{{- range .Values.readCache.kinds }}
- --kind={{ . }}
{{- end }}
{{- range .Values.readCache.audiences }}
- --audience={{ . }}
{{- end }}
- --decision-age={{ .Values.readCache.decisionSeconds }}
- --max-stale={{ .Values.readCache.maxStaleSeconds }}
{{- end }}
