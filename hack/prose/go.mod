module posthorn.io/posthorn/hack/prose

go 1.26.0

require (
	github.com/bmatcuk/doublestar/v4 v4.10.4
	github.com/yuin/goldmark v1.8.7
	go.yaml.in/yaml/v3 v3.0.6
)
