{{- define "pagetide.labels" -}}
app.kubernetes.io/name: pagetide
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "pagetide.chartLabels" -}}
{{ include "pagetide.labels" . }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "pagetide.image" -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* What both pods have in common: who they are, where they run, what they may do. */}}
{{- define "pagetide.pod" -}}
serviceAccountName: pagetide-{{ .component }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
volumes:
  - name: tmp
    emptyDir: {}
{{- with .values.apiKeysSecret }}
  - name: api-keys
    secret: {secretName: {{ . }}}
{{- end }}
{{- end }}

{{- define "pagetide.container" -}}
image: {{ include "pagetide.image" (dict "root" .root "image" .root.Values.image.operator) }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
livenessProbe:
  httpGet: {path: /livez, port: {{ .port }}}
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: {{ .port }}}
  periodSeconds: 5
  timeoutSeconds: 5
resources: {{ toYaml .values.resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
{{- if .values.apiKeysSecret }}
  - {name: api-keys, mountPath: /etc/pagetide/api-keys, readOnly: true}
{{- end }}
{{- end }}

{{- define "pagetide.operatorRules" -}}
- apiGroups: [pagetide.dev]
  resources: [inferenceservices]
  verbs: [get, list, watch]
- apiGroups: [pagetide.dev]
  resources: [inferenceservices/status]
  verbs: [patch]
- apiGroups: [pagetide.dev]
  resources: [inferenceservices/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, serviceaccounts, persistentvolumeclaims]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [servicemonitors]
  verbs: [get, list, create, patch, delete]
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [get, list, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{- define "pagetide.gatewayRules" -}}
- apiGroups: [pagetide.dev]
  resources: [inferenceservices]
  verbs: [list, watch, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
{{- end }}
