// Command watchload holds many watches of a Kubernetes API open, and measures how late their events are: bench.readcache
// compares an API server with the read cache by it. It speaks plain HTTP/1.1 and decodes no object, so that it takes
// little of the machine that it shares with the servers.
//
// An event is recognized by a marker, and by the 19 digits that follow it within a few bytes: the time of the write in
// nanoseconds since 1970. This works in JSON and in protobuf.
//
// It reads commands from stdin, one a line, and answers each with one line of JSON: "connect N" opens watches until
// there are N, "begin" resets the figures, "report" prints them. It ends when stdin ends.
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	digits     = 19
	gap        = 8 // most bytes between the marker and the digits
	perOctave  = 8 // buckets of the histogram: 9% each
	bucketsMax = 40 * perOctave
)

type load struct {
	target    *url.URL
	tls       *tls.Config
	token     string
	path      string
	accept    string
	marker    []byte
	buffer    int
	reconnect time.Duration

	open, events, received, ended, reconnected atomic.Int64
	buckets                                    [bucketsMax]atomic.Int64
	last                                       atomic.Int64
	failure                                    atomic.Pointer[string]
}

func main() {
	l := &load{}
	server := flag.String("server", "", "URL of the server")
	ca := flag.String("ca", "", "PEM file of the server's authority")
	token := flag.String("token-file", "", "file with the bearer token")
	marker := flag.String("marker", "bench.muster.dev/sent", "text before the time of the write")
	flag.StringVar(&l.path, "path", "", "path and query; {n} becomes the number of the watch")
	flag.StringVar(&l.accept, "accept", "application/json", "media type")
	flag.IntVar(&l.buffer, "buffer", 8<<10, "bytes to read at once")
	flag.DurationVar(&l.reconnect, "reconnect", 0, "watch again at a random time within this, after a watch ended; 0: do not")
	flag.Parse()
	if err := l.prepare(*server, *ca, *token); err != nil {
		fmt.Fprintln(os.Stderr, "watchload:", err)
		os.Exit(2)
	}
	l.marker = []byte(*marker)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		command, argument, _ := strings.Cut(lines.Text(), " ")
		switch command {
		case "connect":
			count, err := strconv.Atoi(argument)
			if err != nil {
				fmt.Fprintln(os.Stderr, "watchload: connect needs a number")
				os.Exit(2)
			}
			l.connect(count)
		case "begin":
			l.reset()
		case "report":
		default:
			fmt.Fprintf(os.Stderr, "watchload: unknown command %q\n", command)
			os.Exit(2)
		}
		l.report()
	}
}

func (l *load) prepare(server, ca, token string) error {
	var err error
	if l.target, err = url.Parse(server); err != nil || l.target.Host == "" {
		return fmt.Errorf("--server %q is not a URL", server)
	}
	if l.target.Scheme == "https" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return fmt.Errorf("%s has no certificate", ca)
		}
		l.tls = &tls.Config{RootCAs: pool, ServerName: l.target.Hostname()}
	}
	text, err := os.ReadFile(token)
	l.token = strings.TrimSpace(string(text))
	return err
}

// connect opens watches, a few at a time, until there are count, or one fails.
func (l *load) connect(count int) {
	var done sync.WaitGroup
	numbers := make(chan int)
	for range 16 {
		done.Add(1)
		go func() {
			defer done.Done()
			for number := range numbers {
				conn, reader, err := l.dial(number)
				if err != nil {
					l.fail(err)
					continue
				}
				l.open.Add(1)
				go l.watch(number, conn, reader)
			}
		}()
	}
	for number := int(l.open.Load()); number < count; number++ {
		numbers <- number
	}
	close(numbers)
	done.Wait()
}

func (l *load) fail(err error) {
	text := err.Error()
	l.failure.CompareAndSwap(nil, &text)
}

// dial opens one watch and reads the head of its response.
func (l *load) dial(number int) (net.Conn, *bufio.Reader, error) {
	conn, err := net.DialTimeout("tcp", l.target.Host, 30*time.Second)
	if err != nil {
		return nil, nil, err
	}
	if l.tls != nil {
		conn = tls.Client(conn, l.tls)
	}
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	path := strings.ReplaceAll(l.path, "{n}", strconv.Itoa(number))
	request := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nAccept: %s\r\nUser-Agent: watchload\r\n\r\n",
		path, l.target.Host, l.token, l.accept)
	if _, err = conn.Write([]byte(request)); err != nil {
		conn.Close()
		return nil, nil, err
	}
	reader := bufio.NewReaderSize(conn, l.buffer)
	for first := true; ; first = false {
		line, err := reader.ReadString('\n')
		if err != nil {
			conn.Close()
			return nil, nil, err
		}
		if first && !strings.HasPrefix(line, "HTTP/1.1 200") {
			conn.Close()
			return nil, nil, errors.New(strings.TrimSpace(line))
		}
		if line == "\r\n" {
			break
		}
	}
	_ = conn.SetDeadline(time.Time{})
	return conn, reader, nil
}

// watch reads events until the watch ends, and then watches again if that is wanted.
func (l *load) watch(number int, conn net.Conn, reader *bufio.Reader) {
	for {
		l.read(reader)
		conn.Close()
		l.open.Add(-1)
		l.ended.Add(1)
		if l.reconnect == 0 {
			return
		}
		for {
			time.Sleep(time.Duration(rand.Int64N(int64(l.reconnect))))
			var err error
			if conn, reader, err = l.dial(number); err == nil {
				break
			}
		}
		l.open.Add(1)
		l.reconnected.Add(1)
	}
}

// read takes the chunks of the body apart. A marker may lie across two chunks or two reads.
func (l *load) read(reader *bufio.Reader) {
	var tail []byte
	for {
		line, err := reader.ReadSlice('\n')
		if err != nil {
			return
		}
		left, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 64)
		if err != nil || left == 0 {
			return
		}
		for left > 0 {
			if _, err := reader.Peek(1); err != nil {
				return
			}
			data, _ := reader.Peek(int(min(left, int64(reader.Buffered()))))
			tail = l.count(tail, data)
			l.received.Add(int64(len(data)))
			left -= int64(len(data))
			_, _ = reader.Discard(len(data))
		}
		if _, err := reader.Discard(2); err != nil {
			return
		}
	}
}

// count records the events in data, which follows tail. It returns what must be looked at again with further data.
func (l *load) count(tail, data []byte) []byte {
	if len(tail) > 0 {
		data = append(tail, data...)
	}
	now := time.Now().UnixNano()
	for {
		at := bytes.Index(data, l.marker)
		if at < 0 {
			keep := min(len(data), len(l.marker)-1)
			return append(tail[:0], data[len(data)-keep:]...)
		}
		rest := data[at+len(l.marker):]
		if len(rest) < gap+digits {
			return append([]byte(nil), data[at:]...)
		}
		if sent, ok := number(rest[:gap+digits]); ok {
			l.record(now, sent)
		}
		data = rest
	}
}

func number(text []byte) (int64, bool) {
	start := 0
	for start < len(text) && (text[start] < '1' || text[start] > '9' || !allDigits(text[start:])) {
		start++
	}
	if start == len(text) {
		return 0, false
	}
	value, err := strconv.ParseInt(string(text[start:start+digits]), 10, 64)
	return value, err == nil
}

func allDigits(text []byte) bool {
	if len(text) < digits {
		return false
	}
	for _, c := range text[:digits] {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

func (l *load) record(now, sent int64) {
	l.events.Add(1)
	l.last.Store(now)
	microseconds := math.Max(1, float64(now-sent)/1000)
	l.buckets[min(bucketsMax-1, int(math.Log2(microseconds)*perOctave))].Add(1)
}

func (l *load) reset() {
	l.events.Store(0)
	l.received.Store(0)
	l.ended.Store(0)
	l.reconnected.Store(0)
	l.last.Store(0)
	for i := range l.buckets {
		l.buckets[i].Store(0)
	}
}

// lag is the upper edge of the bucket in which the given share of the events lies, in milliseconds.
func (l *load) lag(share float64) float64 {
	total, seen := l.events.Load(), int64(0)
	if total == 0 {
		return 0
	}
	for i := range l.buckets {
		seen += l.buckets[i].Load()
		if float64(seen) >= share*float64(total) {
			return math.Exp2(float64(i+1)/perOctave) / 1000
		}
	}
	return math.Inf(1)
}

func (l *load) report() {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	failure := ""
	if text := l.failure.Load(); text != nil {
		failure = *text
	}
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{
		"open": l.open.Load(), "events": l.events.Load(), "bytes": l.received.Load(), "ended": l.ended.Load(),
		"reconnected": l.reconnected.Load(), "last_ns": l.last.Load(), "lag_p50_ms": l.lag(0.5), "lag_p99_ms": l.lag(0.99),
		"cpu_s":   float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9,
		"failure": failure,
	})
}
