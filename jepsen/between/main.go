// Between is a relay that a nemesis puts into a TCP connection: it forwards bytes, delayed on request, or, if the far
// end is an S3 server, answers requests with 503 itself.
//
//	between -listen :7402 -to 127.0.0.1:7401 -control :7403          bytes, with a delay
//	between -listen :7070 -to 127.0.0.1:7071 -control :7072 -http    requests
//
// Its control port changes the behaviour and returns the counts so far:
//
//	GET /?delay=40ms&jitter=30ms   each piece waits that long, and up to the jitter more; the order stays
//	GET /?refuse=true              (-http) every request gets 503 SlowDown, and does not reach the far end
//
// The answer is {"pieces":N,"delayed":N,"requests":N,"refused":N}.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Settings of the control port, and counts.
var (
	delay, jitter                      int64 // nanoseconds
	refuse                             int32
	pieces, delayed, requests, refused int64
)

// dialTimeout limits the wait for the far end; a gateway that is gone refuses at once.
const dialTimeout = 5 * time.Second

// queued limits the pieces (up to 64 KiB) that one direction of a connection holds back.
const queued = 256

func control(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	for name, to := range map[string]*int64{"delay": &delay, "jitter": &jitter} {
		if given := q.Get(name); given != "" {
			d, err := time.ParseDuration(given)
			if err != nil || d < 0 {
				http.Error(w, fmt.Sprintf("%s: found %q, expected a duration such as 40ms", name, given), http.StatusBadRequest)
				return
			}
			atomic.StoreInt64(to, int64(d))
		}
	}
	switch given := q.Get("refuse"); given {
	case "":
	case "true":
		atomic.StoreInt32(&refuse, 1)
	case "false":
		atomic.StoreInt32(&refuse, 0)
	default:
		http.Error(w, fmt.Sprintf("refuse: found %q, expected true or false", given), http.StatusBadRequest)
		return
	}
	fmt.Fprintf(w, `{"pieces":%d,"delayed":%d,"requests":%d,"refused":%d}`+"\n",
		atomic.LoadInt64(&pieces), atomic.LoadInt64(&delayed), atomic.LoadInt64(&requests), atomic.LoadInt64(&refused))
}

type piece struct {
	bytes []byte
	due   time.Time
}

// pass forwards the bytes of one end in order, each piece when it is due. Then it closes both ends.
func pass(from, to net.Conn) {
	defer to.Close()
	defer from.Close()
	queue := make(chan piece, queued)
	go func() {
		defer close(queue)
		for {
			b := make([]byte, 64*1024)
			n, err := from.Read(b)
			if n > 0 {
				wait := atomic.LoadInt64(&delay)
				if j := atomic.LoadInt64(&jitter); j > 0 {
					wait += rand.Int63n(j)
				}
				atomic.AddInt64(&pieces, 1)
				if wait > 0 {
					atomic.AddInt64(&delayed, 1)
				}
				queue <- piece{b[:n], time.Now().Add(time.Duration(wait))}
			}
			if err != nil {
				return
			}
		}
	}()
	broken := false
	for p := range queue {
		if broken {
			continue // The reader must not stay behind a full queue.
		}
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.bytes); err != nil {
			broken = true
			from.Close()
		}
	}
}

func bytesBetween(client net.Conn, far string) {
	server, err := net.DialTimeout("tcp", far, dialTimeout)
	if err != nil {
		client.Close()
		return
	}
	var both sync.WaitGroup
	both.Add(2)
	go func() { defer both.Done(); pass(client, server) }()
	go func() { defer both.Done(); pass(server, client) }()
	both.Wait()
}

const slowDown = `<?xml version="1.0" encoding="UTF-8"?>` + "\n" +
	`<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>`

// requestsBetween reads one request after the other and refuses or forwards it. Signed parts are not changed.
func requestsBetween(client net.Conn, far string) {
	defer client.Close()
	in := bufio.NewReader(client)
	var server net.Conn
	var back *bufio.Reader
	defer func() {
		if server != nil {
			server.Close()
		}
	}()
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		atomic.AddInt64(&requests, 1)
		// A client that waits before it sends the body is answered here; the far end is not asked.
		if req.Header.Get("Expect") != "" {
			req.Header.Del("Expect")
			fmt.Fprint(client, "HTTP/1.1 100 Continue\r\n\r\n")
		}
		if atomic.LoadInt32(&refuse) == 1 {
			atomic.AddInt64(&refused, 1)
			io.Copy(io.Discard, req.Body)
			body := slowDown
			if req.Method == http.MethodHead {
				body = ""
			}
			fmt.Fprintf(client, "HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			continue
		}
		if server == nil {
			if server, err = net.DialTimeout("tcp", far, dialTimeout); err != nil {
				return
			}
			back = bufio.NewReader(server)
		}
		if req.Header["User-Agent"] == nil {
			req.Header["User-Agent"] = nil // Write would put in its own.
		}
		if err := req.Write(server); err != nil {
			return
		}
		reply, err := http.ReadResponse(back, req)
		if err != nil {
			return
		}
		err = reply.Write(client)
		reply.Body.Close()
		if err != nil || reply.Close || req.Close {
			return
		}
	}
}

func main() {
	listen := flag.String("listen", "", "where the near end connects, HOST:PORT")
	to := flag.String("to", "", "the far end, HOST:PORT")
	door := flag.String("control", "", "where it is turned, HOST:PORT")
	requests := flag.Bool("http", false, "hand on requests, not bytes")
	flag.Parse()
	if *listen == "" || *to == "" || *door == "" || flag.NArg() > 0 {
		log.Fatal("expected -listen HOST:PORT -to HOST:PORT -control HOST:PORT [-http]")
	}
	in, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Fatal(http.ListenAndServe(*door, http.HandlerFunc(control))) }()
	between := bytesBetween
	if *requests {
		between = requestsBetween
	}
	for {
		client, err := in.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go between(client, *to)
	}
}
