(ns jepsen.holdfast.nbd
  "An NBD client: fixed newstyle handshake, INFO and GO, simple replies, READ,
  WRITE, FLUSH, FUA, several requests in flight.

  Every failure is an ex-info whose :kind says what can be concluded:

    :unreachable  no connection, or nothing from the server before the end of
                  the handshake: no request was sent
    :refused      the server refused the export, in words: no request was sent
    :gone         the connection broke or stayed silent: whether unanswered
                  requests were or will be carried out is not known
    :errno        the server answered this request with an error
    :protocol     the server said what the protocol does not allow"
  (:import (java.io BufferedInputStream BufferedOutputStream DataInputStream
                    DataOutputStream IOException)
           (java.net InetSocketAddress Socket)
           (java.util Arrays)))

(def ^:private opt-magic 0x49484156454f5054)
(def ^:private opt-reply-magic 0x3e889045565a9)
(def ^:private request-magic 0x25609513)
(def ^:private reply-magic 0x67446698)
(def ^:private opt-info 6)
(def ^:private opt-go 7)
(def ^:private reply-ack 1)
(def ^:private reply-info 3)
(def ^:private info-export 0)

(def commands {:read 0, :write 1, :disconnect 2, :flush 3})
(def fua 1)

(defn fail!
  ([kind message] (fail! kind message nil))
  ([kind message more]
   (throw (ex-info (str (name kind) ": " message) (assoc more :kind kind)))))

(defrecord Conn [^Socket socket ^DataInputStream in ^DataOutputStream out
                 size host cookie early])

(defn close!
  [conn]
  (when conn
    (try (.close ^Socket (:socket conn)) (catch IOException _))))

(defn- send-option!
  [^DataOutputStream out option ^String export]
  (let [export (.getBytes export "UTF-8")]
    (doto out
      (.writeLong opt-magic)
      (.writeInt option)
      (.writeInt (+ 4 (count export) 2))
      (.writeInt (count export))
      (.write export)
      (.writeShort 0)
      (.flush))))

(defn- read-bytes
  ^bytes [^DataInputStream in n]
  (let [b (byte-array n)]
    (.readFully in b)
    b))

(defn- read-option-replies!
  "Until the acknowledgement. The export's size, or a :refused."
  [^DataInputStream in]
  (loop [size nil]
    (when-not (= opt-reply-magic (.readLong in))
      (fail! :protocol "option reply without its magic"))
    (.readInt in)
    (let [kind (.readInt in)
          len  (.readInt in)
          _    (when-not (<= 0 len 65536)
                 (fail! :protocol (str "option reply of " len " bytes")))
          body (read-bytes in len)]
      (cond
        (= kind reply-ack) (or size (fail! :protocol "no size"))
        (neg? kind)        (fail! :refused (String. body "UTF-8")
                                  {:code (bit-and kind 0x7fffffff)})
        (= kind reply-info)
        (let [data (java.nio.ByteBuffer/wrap body)]
          (recur (if (= info-export (.getShort data)) (.getLong data) size)))
        :else (recur size)))))

(defn- handshake!
  [host port option export timeout-ms]
  (let [socket (Socket.)]
    (try
      (.setTcpNoDelay socket true)
      (.connect socket (InetSocketAddress. ^String host (int port))
                (int timeout-ms))
      (.setSoTimeout socket (int timeout-ms))
      (let [in  (DataInputStream. (BufferedInputStream. (.getInputStream socket)
                                                        65536))
            out (DataOutputStream. (BufferedOutputStream.
                                     (.getOutputStream socket) 65536))]
        (when-not (= "NBDMAGICIHAVEOPT" (String. (read-bytes in 16) "US-ASCII"))
          (fail! :protocol "this is not NBD"))
        (.readShort in)
        (.writeInt out 3) ; fixed newstyle, no zeroes
        (send-option! out option export)
        (let [size (read-option-replies! in)]
          (->Conn socket in out size host (atom 0) (atom {}))))
      (catch IOException e
        (.close socket)
        (fail! :unreachable (str host ":" port ": " e)))
      (catch Exception e
        (.close socket)
        (throw e)))))

(defn connect!
  "Opens an export. Options: :host, :port, :export; :handshake-ms bounds each
  wait until the export is open, :timeout-ms each wait later."
  [{:keys [host port export handshake-ms timeout-ms]}]
  (let [conn (handshake! host port opt-go export handshake-ms)]
    (.setSoTimeout ^Socket (:socket conn) (int timeout-ms))
    conn))

(defn serves?
  "Would this gateway serve the export? Asks (INFO) and takes no lease."
  [host port export timeout-ms]
  (try (close! (handshake! host port opt-info export timeout-ms))
       true
       (catch clojure.lang.ExceptionInfo _ false)))

(defn- gone!
  [conn ^Throwable e]
  (close! conn)
  (fail! :gone (str (:host conn) ": " e)))

(defn send!
  "Sends a request and returns its cookie. `data` is a write's payload."
  [conn command flags offset len ^bytes data]
  (let [cookie (swap! (:cookie conn) inc)]
    (try
      (let [^DataOutputStream out (:out conn)]
        (doto out
          (.writeInt request-magic)
          (.writeShort flags)
          (.writeShort (commands command))
          (.writeLong cookie)
          (.writeLong offset)
          (.writeInt len))
        (when data (.write out data))
        (.flush out))
      cookie
      (catch IOException e (gone! conn e)))))

(defn receive!
  "Waits for the answer to `cookie`; `lens` is {cookie bytes to read on success}
  of all that may be answered before it. Gives the data of a read, else true."
  [conn cookie lens]
  (if-let [[_ answer] (find @(:early conn) cookie)]
    (do (swap! (:early conn) dissoc cookie)
        (if (instance? Throwable answer) (throw answer) answer))
    (let [[got answer]
          (try
            (let [^DataInputStream in (:in conn)]
              (when-not (= reply-magic (.readInt in))
                (fail! :protocol "reply without its magic"))
              (let [errno (.readInt in)
                    got   (.readLong in)
                    len   (lens got)]
                (when-not len
                  (fail! :protocol (str "an answer to " got
                                        ", which was not asked")))
                [got (cond (not= 0 errno)
                           (ex-info (str "errno " errno)
                                    {:kind :errno, :errno errno})
                           (pos? len) (read-bytes in len)
                           :else      true)]))
            (catch IOException e (gone! conn e))
            (catch clojure.lang.ExceptionInfo e (close! conn) (throw e)))]
      (if (= got cookie)
        (if (instance? Throwable answer) (throw answer) answer)
        (do (swap! (:early conn) assoc got answer)
            (recur conn cookie lens))))))

(defn- call!
  [conn command flags offset len data]
  (let [cookie (send! conn command flags offset len data)]
    (receive! conn cookie {cookie (if (= :read command) len 0)})))

(defn read!  [conn offset len] (call! conn :read 0 offset len nil))
(defn flush! [conn] (call! conn :flush 0 0 0 nil))
(defn write!
  ([conn offset data] (write! conn offset data 0))
  ([conn offset ^bytes data flags]
   (call! conn :write flags offset (alength data) data)))

;; Content of registers

(defn block
  "`len` bytes that all say the same: key and value, 16 bytes each time."
  ^bytes [k v len]
  (let [buf (java.nio.ByteBuffer/allocate len)]
    (dotimes [_ (quot len 16)]
      (.putLong buf (bit-xor 0x486f6c6466617374 (long k)))
      (.putLong buf v))
    (.array buf)))

(def torn "What a register holds that holds no one write." -1)

(defn unblock
  "The value in `data`: 0 if never written, `torn` for anything that is not a single
  write to this key."
  [k ^bytes data]
  (if (Arrays/equals data (byte-array (alength data)))
    0
    (let [v (.getLong (java.nio.ByteBuffer/wrap data) 8)]
      (if (Arrays/equals data (block k v (alength data))) v torn))))
