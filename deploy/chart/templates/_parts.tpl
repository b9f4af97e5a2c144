{{/* Where pods of one program run: of (list . .Values.PROGRAM). */}}
{{- define "smoe.placement" }}
{{- with (index . 0).Values.imagePullSecrets }}
      imagePullSecrets:
        {{- range . }}
        - name: {{ quote . }}
        {{- end }}
{{- end }}
{{- with (index . 1).nodeSelector }}
      nodeSelector: {{ toJson . }}
{{- end }}
{{- with (index . 1).tolerations }}
      tolerations: {{ toJson . }}
{{- end }}
{{- end }}

{{/* The Prometheus that the controller asks. */}}
{{- define "smoe.prometheus" -}}
{{- if .Values.prometheus.enabled -}}
http://prometheus.{{ .Release.Namespace }}:9090
{{- else -}}
{{ .Values.prometheus.url }}
{{- end }}
{{- end }}

{{/* Who reads metrics, as a peer of a network policy: of (list . NAMESPACE), that of the release where it is named. */}}
{{- define "smoe.scraper" -}}
{{- $values := (index . 0).Values -}}
{{- if not $values.prometheus.enabled -}}
{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ $values.prometheus.namespace }}}}}
{{- else if index . 1 -}}
{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ index . 1 }}}}, podSelector: {matchLabels: {app: prometheus}}}
{{- else -}}
{podSelector: {matchLabels: {app: prometheus}}}
{{- end }}
{{- end }}

{{/* prometheus.yml with the release's namespace in place of its default. */}}
{{- define "smoe.scrapes" -}}
{{- $scrapes := .Files.Get "files/prometheus.yml" | replace "names: [openfaas]" (printf "names: [%s]" .Release.Namespace) -}}
{{- if .Values.prometheus.verifyKubelets -}}
{{ $scrapes }}
{{- else -}}
{{ $scrapes | replace "insecure_skip_verify: false" "insecure_skip_verify: true" }}
{{- end }}
{{- end }}
