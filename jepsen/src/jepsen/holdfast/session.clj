(ns jepsen.holdfast.session
  "Leases with tokens, acquired through the command line: owner, node and epoch."
  (:require [jepsen.holdfast [client :as hc]
                             [db :as db]
                             [nbd :as nbd]]))

(defn- field [re text] (second (re-find re text)))

(defn acquire!
  "Takes the set's lease by force: {:token :epoch :node}. Throws :refused if it
  surely was not granted, :gone if that is not known."
  [test owner ttl]
  (let [{:keys [exit out err]} (db/cli test "lease" "acquire" db/set-name
                                       "--owner" owner "--ttl" ttl "--force")]
    (case (int exit)
      0 {:token (field #"\"token\":\"([0-9a-f]+)\"" out)
         :epoch (parse-long (field #"\"epoch\":(\d+)" out))
         :node  (db/node-of test (field #"\"gateway_name\":\"([^\"]+)\"" out))}
      (3 4) (nbd/fail! :refused (field #"\"message\":\"([^\"]*)" err))
      (nbd/fail! :gone (str "exit " exit ": " (field #"\"message\":\"([^\"]*)" err))))))

(defn open!
  "A connection of a session: volume, slot, and a generation that must grow with each
  connection of the slot (before the new one's first request the older one is
  closed, and its unsequenced requests are dropped)."
  [test {:keys [token node]} volume slot generation]
  (hc/connect-node! test slot node
                    (str (db/export volume) "?token=" token "&conn=" slot
                         "&gen=" generation)))
