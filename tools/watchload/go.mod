// The load of bench.readcache: tools/build-go watchload.
module muster.dev/watchload

go 1.26
