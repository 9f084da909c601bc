module muster.dev/tools/cni-shim

go 1.26.0
