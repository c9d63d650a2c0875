(ns jepsen.holdfast.s3
  "An S3 server (versitygw over a directory) in a namespace of its own."
  (:require [clojure.java.io :as io]
            [clojure.java.shell :refer [sh]]
            [jepsen.util :as util]
            [jepsen.holdfast.netns :as netns])
  (:import (java.net InetSocketAddress Socket)
           (java.util.concurrent TimeUnit)))

(def port 7070)

(defn start!
  "Starts it on `node` with an empty bucket `holdfast`; the process."
  [test node]
  (let [dir (str (:dir test) "/store")
        b   (doto (ProcessBuilder.
                    ["ip" "netns" "exec" node "versitygw" "--keep-alive"
                     "--port" (str ":" port) "posix" dir])
              (.redirectErrorStream true)
              (.redirectOutput (io/file (:dir test) "s3.log")))]
    (.mkdirs (io/file dir "holdfast"))
    (doto (.environment b)
      (.put "ROOT_ACCESS_KEY" (:s3-access-key test))
      (.put "ROOT_SECRET_KEY" (:s3-secret-key test)))
    (let [p (.start b)]
      (util/await-fn
        #(with-open [s (Socket.)]
           (.connect s (InetSocketAddress.
                         ^String (get (:addresses test) node) (int port))
                     500))
        {:retry-interval 100, :timeout 20000, :log-interval 5000})
      p)))

(defn stop!
  [^Process p]
  (.destroy p)
  (when-not (.waitFor p 5 TimeUnit/SECONDS)
    (.destroyForcibly p)))
