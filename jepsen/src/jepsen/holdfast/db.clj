(ns jepsen.holdfast.db
  "One gateway per node, in one cluster with one set, and a nemesis's operations on
  them: kill, pause, flip a bit in a journal.

      DIR/NODE/gateway.toml, cluster.key, gateway.pid, gateway.log, data/
      DIR/store            the set's store if --store is a directory

  Checkpoints are frequent and journal files small, so that a run of a minute has
  uploads, purged journals and snapshots."
  (:require [clojure.java.shell :refer [sh]]
            [clojure.string :as str]
            [clojure.tools.logging :refer [info warn]]
            [clj-commons.slingshot :refer [throw+]]
            [jepsen [control :as c]
                    [core :as jepsen]
                    [db :as db]
                    [store :as store]
                    [util :as util]]
            [jepsen.control.util :as cu]
            [jepsen.holdfast [clocks :as clocks]
                             [disks :as disks]
                             [nbd :as nbd]
                             [ssh :as ssh]
                             [weather :as weather]]))

(def set-name "jepsen")
(def volumes ["v0" "v1" "v2"])
(def volume-bytes (* 1024 1024 1024))
(def api-port 7400)
(def peer-port 7401)
(def nbd-port 10809)

(defn address [test node] (get (:addresses test) node node))

(defn gateway-name
  "Gateways are numbered: a host's name may not be a valid one."
  [test node]
  (str "g" (inc (.indexOf ^java.util.List (:nodes test) node))))

(defn node-of [test gateway]
  (nth (:nodes test) (dec (parse-long (subs gateway 1)))))

(defn export [volume] (str set-name "/" volume))

(defn dir  [test node] (str (:dir test) "/" node))
(defn- file [test node f] (str (dir test node) "/" f))
(defn data
  "Directory of a gateway's data."
  [test node]
  (file test node (disks/under test)))

(defn- pidfile [test node] (file test node "gateway.pid"))
(defn log-file [test node] (file test node "gateway.log"))

(defn bin
  "A link to the program, so that an upgrade is another link."
  [test node]
  (file test node "holdfast"))

(defn use-program!
  "The program of the node's gateway from its next start on: :binary or
  :other-binary. Returns its path."
  [test node which]
  (let [path (ssh/program test (get test which))]
    (c/su (c/exec :ln :-sfn path (bin test node)))
    path))

(defn- config
  [test node]
  (let [at #(str (address test node) ":" %)]
    (str "name = \"" (gateway-name test node) "\"\n"
         "data_dir = \"" (data test node) "\"\n"
         "api_listen = \"0.0.0.0:" api-port "\"\n"
         "peer_listen = \"0.0.0.0:" peer-port "\"\n"
         "nbd_listen = \"0.0.0.0:" nbd-port "\"\n"
         "plain_exports = true\n"
         "snapshot_exports = \"open\"\n"
         "plaintext_network = true\n"
         "[advertise]\n"
         "api = \"" (at api-port) "\"\n"
         "peer = \"" (at (if (:delays test) weather/peer-port peer-port)) "\"\n"
         "nbd = \"" (at nbd-port) "\"\n"
         "[journal]\nbound = \"1GiB\"\nreserve = \"128MiB\"\nfile = \"16MiB\"\ntail = \"8MiB\"\n"
         "[cache]\nmemory = \"64MiB\"\ndisk = \"0B\"\n"
         "[upload]\ninterval_ms = 2000\nbytes = \"32MiB\"\n"
         "[key]\nfile = \"" (file test node "cluster.key") "\"\n")))

(defn- plan
  [test]
  (str (str/join (for [node (:nodes test)]
                   (str "[[gateways]]\nname = \"" (gateway-name test node)
                        "\"\nregion = \"local\"\napi = \""
                        (address test node) ":" api-port "\"\n")))
       "[[sets]]\nname = \"" set-name "\"\nstore = \"" (:store-url test) "\"\n"
       "volumes = { "
       (str/join ", " (map #(str % " = \"" volume-bytes "B\"") volumes)) " }\n"))

(defn env
  "Of a gateway's process."
  [test node]
  (merge (clocks/env test node)
         (when (:s3-endpoint test)
           {:AWS_ACCESS_KEY_ID     (:s3-access-key test)
            :AWS_SECRET_ACCESS_KEY (:s3-secret-key test)})))

(defn start!
  [test node]
  (c/su
    (cu/start-daemon!
      {:chdir   (dir test node)
       :logfile (log-file test node)
       :pidfile (pidfile test node)
       :env     (env test node)}
      (bin test node) :gateway :run
      :--config (file test node "gateway.toml"))))

(defn live-pid
  "What a pid file of this node names, if it is a process that runs."
  [pidfile]
  (let [pid (util/meh (c/exec :cat pidfile))]
    (when (and (string? pid) (re-matches #"\d+" pid)
               (= "yes" (c/exec :bash :-c
                                (str "[ -d /proc/" pid " ] && ! grep -q '^State:.Z' /proc/"
                                     pid "/status && echo yes || echo no"))))
      pid)))

(defn pid
  "Of the gateway's process, nil if it does not run."
  [test node]
  (live-pid (pidfile test node)))

(defn kill!
  "SIGKILL, and waits until it is gone."
  [test node]
  (when-let [p (pid test node)]
    (c/su (util/meh (c/exec :kill :-9 p)))
    (util/await-fn #(when (pid test node) (throw+ {:type :still-there}))
                   {:retry-interval 50, :log-interval 5000, :timeout 20000}))
  (c/su (c/exec :rm :-f (pidfile test node)))
  :killed)

(defn term!
  "SIGTERM, and waits until it is gone; the milliseconds that it took, nil if it
  did not run. One that does not end within 20 s is killed: :killed."
  [test node]
  (when-let [p (pid test node)]
    (let [t0 (System/nanoTime)]
      (c/su (c/exec :kill :-15 p))
      (let [ended? (try (util/await-fn
                          #(when (pid test node) (throw+ {:type :still-there}))
                          {:retry-interval 50, :log-interval 5000, :timeout 20000})
                        true
                        (catch Exception _ false))]
        (if ended?
          (do (c/su (c/exec :rm :-f (pidfile test node)))
              (quot (- (System/nanoTime) t0) 1000000))
          (kill! test node))))))

(defn- signal! [test node sig]
  (if-let [p (pid test node)]
    (do (c/su (c/exec :kill sig p)) sig)
    :not-running))

(defn wipe!
  "An empty disk for a gateway that was killed before."
  [test node]
  (c/su (c/exec :rm :-rf (data test node))
        (c/exec :mkdir :-p (data test node))))

(def flip-a-bit
  "Shell: flips one bit of the journal, in a byte that is not zero (a file is
  zero-filled ahead), and says where."
  "cd \"$1\" || exit 1
   files=(journal-*)
   for try in $(seq 2000); do
     f=${files[RANDOM % ${#files[@]}]}
     at=$(( (RANDOM * 32768 + RANDOM) % (4 * 1024 * 1024) ))
     v=$(dd if=\"$f\" bs=1 skip=$at count=1 status=none | od -An -tu1 | tr -d ' ')
     [ -z \"$v\" ] && continue
     [ \"$v\" = 0 ] && continue
     w=$(( v ^ (1 << (RANDOM % 8)) ))
     printf \"\\\\x$(printf %02x $w)\" | dd of=\"$f\" bs=1 seek=$at conv=notrunc status=none
     echo \"$f at $at: $v is now $w\"; exit 0
   done
   echo 'nothing but zeroes found'; exit 1")

(def cut-off
  "Shell: cuts a journal file off at a random byte of what was written to it (the
  newest one if it is the only one; else an older one), and says where."
  "cd \"$1\" || exit 1
   files=(journal-*)
   n=${#files[@]}
   [ $n -gt 1 ] && n=$(( n - 1 ))
   f=${files[RANDOM % n]}
   size=$(stat -c %s \"$f\")
   end=$(( $(tr '\\0' '\\n' < \"$f\" | grep -abv '^$' | tail -1 | cut -d: -f1) + 1 ))
   at=$(( (RANDOM * 32768 + RANDOM) % end ))
   truncate -s $at \"$f\"
   echo \"$f of $size bytes, written to byte $end or further: cut to $at\"")

(defn truncate!
  "Cuts a file of the journal of a gateway that was killed before."
  [test node]
  (c/su (c/exec :bash :-c cut-off :cut (str (data test node) "/journal"))))

(defn corrupt!
  "Flips a bit in the journal of a gateway that was killed before."
  [test node]
  (c/su (c/exec :bash :-c flip-a-bit :flip (str (data test node) "/journal"))))

(defn api [test node] (str (address test node) ":" api-port))

(defn cli-within
  "Runs the command line on the machine of the clients. {:exit :out :err}."
  [test timeout & args]
  (apply sh (:binary test) "--api" (str/join "," (map #(api test %) (:nodes test)))
         "--output" "json" "--timeout" timeout args))

(defn cli [test & args] (apply cli-within test "10s" args))

(defn message
  "Of a command that failed, what it said."
  [{:keys [exit err]}]
  (when-not (zero? exit)
    (or (second (re-find #"\"message\":\"([^\"]*)" err)) err)))

(defn gateways
  "{node {:member :reachable :behind :leads :standing :trouble :version}} from the
  cluster's list; nil without an answer."
  [test]
  (let [{:keys [exit out]} (cli-within test "2s" "gateway" "list")
        text (fn [o k] (second (re-find (re-pattern (str "\"" k "\":\"([^\"]*)\"")) o)))]
    (when (zero? exit)
      (into {} (for [o     (re-seq #"\{\"api\":[^{}]*\}" out)
                     :let  [node (some #(when (= (api test %) (text o "api")) %)
                                       (:nodes test))]
                     :when node]
                 [node {:member    (parse-long (second (re-find #"\"member\":(\d+)" o)))
                        :reachable (str/includes? o "\"reachable\":true")
                        :behind    (parse-long (or (second (re-find #"\"entries_behind\":(\d+)" o)) "0"))
                        :leads     (mapv second (re-seq #"\"([^\"]+)\""
                                                         (or (second (re-find #"\"leads\":\[([^\]]*)\]" o)) "")))
                         :standing  (text o "standing")
                        :trouble   (text o "trouble")
                        :version   (text o "version")}])))))

(defn await-ready
  "Waits until the cluster reports this node's gateway as ready and nearly caught up;
  returns whether that came within `seconds`."
  [test node seconds]
  (let [until (+ (System/nanoTime) (* 1000000000 seconds))]
    (loop []
      (let [{:keys [reachable behind trouble]} (get (gateways test) node)]
        (cond (and reachable (= "" trouble) (< behind 100)) true
              (< until (System/nanoTime)) false
              :else (do (Thread/sleep 200) (recur)))))))

(defn serving-nodes
  "Nodes whose gateway says that it leads the set."
  [test]
  (->> (:nodes test)
       (util/real-pmap #(when (nbd/serves? (address test %) nbd-port
                                           (export (first volumes)) 1000) %))
       (remove nil?)))

(defn- bootstrap!
  [test]
  ; The command line runs on the machine of the clients, and reads the plan there.
  (let [f (.getCanonicalPath (store/path! test "cluster.toml"))]
    (spit f (plan test))
    (util/await-fn
      (fn []
        (let [{:keys [exit err out]} (cli test "cluster" "bootstrap" "--config" f)]
          (when-not (zero? exit)
            (throw+ {:type :bootstrap, :exit exit, :err err, :out out}))))
      {:retry-interval 500, :log-interval 10000, :timeout 90000
       :log-message "Waiting for the gateways to become a cluster"})
    (util/await-fn #(when (empty? (serving-nodes test))
                      (throw+ {:type :nobody-serves}))
                   {:retry-interval 200, :log-interval 10000, :timeout 60000})))

(defn db []
  (reify db/DB
    (setup! [_ test node]
      (c/su
        (c/exec :rm :-rf (dir test node))
        (c/exec :mkdir :-p (dir test node))
        (disks/install! test node (dir test node))
        (c/exec :mkdir :-p (data test node))
        (run! (partial ssh/copy! test)
              (keep test [:binary :other-binary]))
        (use-program! test node :binary)
        (clocks/install! test node)
        (cu/write-file! (config test node) (file test node "gateway.toml"))
        (cu/write-file! (str (:cluster-key test) "\n")
                        (file test node "cluster.key"))
        (c/exec :chmod "600" (file test node "cluster.key"))
        (c/exec :touch (file test node "twin.log"))
        (weather/install! test node (dir test node) (address test node) peer-port))
      (start! test node))

    (teardown! [_ test node]
      (kill! test node)
      (weather/remove! test (dir test node))
      (disks/remove! test node)
      (when-not (:keep-data test)
        (c/su (c/exec :rm :-rf (dir test node)))))

    db/LogFiles
    (log-files [_ test node]
      {(log-file test node)              "gateway.log"
       (file test node "twin.log")       "twin.log"
       (file test node "gateway.toml")   "gateway.toml"})

    db/Primary
    (primaries [_ test] (serving-nodes test))
    (setup-primary! [_ test _node] (bootstrap! test))

    db/Kill
    (kill!  [_ test node] (kill! test node))
    (start! [_ test node] (start! test node))

    db/Pause
    (pause!  [_ test node] (signal! test node :-STOP))
    (resume! [_ test node] (signal! test node :-CONT))))
