(ns jepsen.holdfast.between
  "Turns a process of between/ at its control door.")

(defn- field [text k]
  (parse-long (second (re-find (re-pattern (str "\"" k "\":(\\d+)")) text))))

(defn turn!
  "Asks for `query` (see between/main.go), which may be empty: what it did so far,
  {:pieces :delayed :requests :refused}."
  [address port query]
  (let [url  (java.net.URL. (str "http://" address ":" port "/?" query))
        text (with-open [in (.getInputStream (doto (.openConnection url)
                                               (.setConnectTimeout 2000)
                                               (.setReadTimeout 2000)))]
               (slurp in))]
    (into {} (for [k ["pieces" "delayed" "requests" "refused"]]
               [(keyword k) (field text k)]))))
